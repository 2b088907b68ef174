// The buttons that unfold the navigation have a picture and no words.
document.addEventListener("DOMContentLoaded", () => {
  for (const button of document.querySelectorAll("summary")) {
    if (!button.textContent.trim()) button.setAttribute("aria-label", "Show or hide what is below");
  }
});
