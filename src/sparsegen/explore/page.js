"use strict";
// The page: one state, one way to draw it. Every change goes through change(), which draws everything that depends on it.
(() => {
  const MAPS = JSON.parse(document.getElementById("table").textContent);
  const BY_NAME = Object.fromEntries(MAPS.map((map) => [map.name, map]));
  const START = { z: [1.2, 0.9, 0.5, 0.3, 0.1], lam: 0.5, q: 0.5, temperature: 1, alpha: 1.5, map: "sparsegen_lin" };
  const LEAST = 2, MOST = 12;
  const SYMBOLS = { lam: "λ", q: "q", temperature: "t", alpha: "α" };
  const state = { ...START, z: [...START.z], range: 3, reach: 2, span: 1 }; // half of what bars, plane and triangle show
  const $ = (id) => document.getElementById(id);

  // Numbers as people write them: four digits, no needless zeros, a real minus sign.
  function spell(v) {
    if (!Number.isFinite(v)) return Number.isNaN(v) ? "not a number" : v > 0 ? "∞" : "−∞";
    const text = v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e5) ? v.toExponential(2) : String(+v.toPrecision(4));
    return text.replace("-", "−");
  }
  const signed = (v) => (v < 0 ? `(${spell(v)})` : spell(v));
  const subscript = (i) => String(i).replace(/\d/g, (d) => "₀₁₂₃₄₅₆₇₈₉"[d]);
  const title = (map) => map.name.replaceAll("_", "-");
  const whole = (text) => text.replaceAll(" ", "\u00a0"); // does not break across lines
  const rounded = (v) => +v.toFixed(2);

  // ---- state in the address -------------------------------------------------------------------------------------
  const GOOD = {
    lam: (v) => v < 1, q: (v) => v >= 0, temperature: (v) => v > 0 && v < Infinity,
    alpha: (v) => v >= 1 && v < Infinity,
  };
  const WISH = { lam: "below 1", q: "at least 0", temperature: "above 0 and finite", alpha: "at least 1 and finite" };
  const number = (text) => {
    const plain = text.trim().replace("−", "-").toLowerCase();
    if (/^[+]?(inf|infinity|∞)$/.test(plain)) return Infinity;
    if (/^-(inf|infinity|∞)$/.test(plain)) return -Infinity;
    return plain === "" ? NaN : Number(plain);
  };
  const numbers = (text) => text.split(/[\s,;]+/).filter(Boolean).map(number);
  const goodScores = (z) => z.length >= LEAST && z.length <= MOST && z.every((v) => Math.abs(v) <= 1e6);

  function fromAddress(hash) {
    const given = new URLSearchParams(hash.replace(/^#/, "")), refused = [];
    const z = numbers(given.get("z") ?? "");
    if (given.has("z")) goodScores(z) ? (state.z = z) : refused.push(`z = ${given.get("z")} (two to twelve numbers up to a million)`);
    for (const [name, good] of Object.entries(GOOD)) {
      if (!given.has(name)) continue;
      const value = number(given.get(name));
      good(value) ? (state[name] = value) : refused.push(`${name} = ${given.get(name)} (it must be ${WISH[name]})`);
    }
    if (given.has("map")) BY_NAME[given.get("map")] ? (state.map = given.get("map")) : refused.push(`map = ${given.get("map")}`);
    $("notice").hidden = refused.length === 0;
    $("notice").textContent = refused.length ? `Left out of the link, as it cannot be used: ${refused.join("; ")}.` : "";
  }
  const toAddress = () =>
    `#z=${state.z.join(",")}${Object.keys(GOOD).map((name) => `&${name}=${state[name]}`).join("")}&map=${state.map}`;

  // ---- the scores, as bars to drag --------------------------------------------------------------------------------
  const HEIGHT = 240, TOP = 26, BOTTOM = 26;
  const toY = (v) => TOP + ((state.range - v) / (2 * state.range)) * (HEIGHT - TOP - BOTTOM);
  const fromY = (y) => state.range - ((y - TOP) / (HEIGHT - TOP - BOTTOM)) * 2 * state.range;
  const svg = (name, attributes, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };

  function buildScores() {
    const all = $("scores").clientWidth || 480;
    const picture = svg("svg", { viewBox: `0 0 ${all} ${HEIGHT}` });
    picture.append(svg("line", { class: "zero", x1: 0, x2: all, y1: toY(0), y2: toY(0) }));
    const step = all / state.z.length, width = Math.min(56, step * 0.7);
    state.z.forEach((_, i) => {
      const middle = (i + 0.5) * step;
      const score = svg("g", { class: "score", tabindex: 0, role: "slider", "aria-orientation": "vertical", "aria-label": `z ${i + 1}` },
        svg("rect", { class: "hit", x: middle - width / 2, y: TOP - 6, width, height: HEIGHT - TOP - BOTTOM + 12, rx: 4 }),
        svg("rect", { class: "value", x: middle - width / 2, width }),
        svg("rect", { class: "knob", x: middle - width / 2 - 3, width: width + 6, height: 8, rx: 4 }),
        svg("text", { class: "number", x: middle, y: TOP - 12 }),
        svg("text", { x: middle, y: HEIGHT - 4 }, `z${subscript(i + 1)}`));
      score.addEventListener("pointerdown", (event) => dragScore(event, score, i, picture));
      score.addEventListener("keydown", (event) => keyScore(event, i));
      picture.append(score);
    });
    $("scores").replaceChildren(picture);
  }
  function drawScores() {
    document.querySelectorAll("#scores .score").forEach((score, i) => {
      const v = state.z[i], y = toY(Math.max(-state.range, Math.min(state.range, v))), zero = toY(0);
      const bar = score.querySelector(".value");
      bar.setAttribute("y", Math.min(y, zero));
      bar.setAttribute("height", Math.abs(y - zero));
      score.classList.toggle("below", v < 0);
      score.querySelector(".knob").setAttribute("y", y - 4);
      score.querySelector(".number").textContent = spell(v);
      for (const [key, value] of [["valuemin", -state.range], ["valuemax", state.range], ["valuenow", v], ["valuetext", spell(v)]])
        score.setAttribute(`aria-${key}`, value);
    });
  }
  const setScore = (i, v) => {
    const z = [...state.z];
    z[i] = rounded(Math.max(-state.range, Math.min(state.range, v)));
    change({ z });
  };
  function dragScore(event, score, i, picture) {
    score.setPointerCapture(event.pointerId);
    score.focus();
    const move = (e) => {
      const box = picture.getBoundingClientRect();
      setScore(i, fromY(((e.clientY - box.top) / box.height) * HEIGHT));
    };
    move(event);
    score.addEventListener("pointermove", move);
    const end = () => score.removeEventListener("pointermove", move);
    score.addEventListener("pointerup", end, { once: true });
    score.addEventListener("pointercancel", end, { once: true });
  }
  const KEYS = { ArrowUp: 0.1, ArrowRight: 0.1, ArrowDown: -0.1, ArrowLeft: -0.1, PageUp: 1, PageDown: -1 };
  function keyScore(event, i) {
    const ends = { Home: -state.range, End: state.range };
    if (event.key in KEYS) setScore(i, state.z[i] + KEYS[event.key] * (event.shiftKey ? 0.1 : 1));
    else if (event.key in ends) setScore(i, ends[event.key]);
    else return;
    event.preventDefault();
  }

  // ---- dials: a slider and a number each ----------------------------------------------------------------------------
  const near = (v) => +v.toPrecision(3);
  const DIALS = {
    lam: { at: (v) => v, to: (s) => s },
    q: { at: (v) => (v === Infinity ? 1 : v / (1 + v)), to: (s) => (s >= 1 ? Infinity : near(s / (1 - s))) },
    temperature: { at: (v) => Math.log(v), to: (s) => near(Math.exp(s)) },
    alpha: { at: (v) => v, to: (s) => s },
  };
  function connectDials() {
    for (const [name, dial] of Object.entries(DIALS)) {
      $(name).addEventListener("input", () => change({ [name]: dial.to(Number($(name).value)) }));
      const box = $(`${name}-number`);
      box.addEventListener("input", () => {
        const value = number(box.value), good = GOOD[name](value);
        box.setAttribute("aria-invalid", !good);
        if (good) change({ [name]: value });
      });
      box.addEventListener("blur", () => { box.setAttribute("aria-invalid", false); drawDials(); });
    }
  }
  function drawDials() {
    for (const [name, dial] of Object.entries(DIALS)) {
      $(name).value = dial.at(state[name]);
      $(name).setAttribute("aria-valuetext", spell(state[name]));
      if (document.activeElement !== $(`${name}-number`)) $(`${name}-number`).value = spell(state[name]);
    }
  }

  // How many entries survive for each lam: the band under its slider.
  function drawBand() {
    const map = BY_NAME[state.map].controls.includes("lam") ? BY_NAME[state.map] : BY_NAME.sparsegen_lin;
    const low = -4, high = 1, all = $("band").clientWidth || 500, outside = sparsegen.apply(map, state.z, state).outside;
    const ends = outside ? [] : sparsegen.breaks(map, state.z, state);
    const picture = svg("svg", { viewBox: `0 0 ${all} 24`, "aria-hidden": true });
    const texts = [];
    ends.forEach((end, i) => {
      const right = Math.min(high, end), left = Math.max(low, ends[i + 1] ?? -Infinity);
      if (!(right > left)) return;
      const place = (v) => ((v - low) / (high - low)) * all;
      const here = state.lam < end && state.lam >= (ends[i + 1] ?? -Infinity);
      picture.append(svg("rect", { class: here ? "segment here" : "segment", x: place(left), width: place(right) - place(left), y: 2, height: 20 }));
      if (place(right) - place(left) > 16) picture.append(svg("text", { x: (place(left) + place(right)) / 2, y: 16 }, String(i + 1)));
      texts.push(`${i + 1} for λ from ${spell(left)} to ${spell(right)}`);
    });
    $("band").replaceChildren(picture);
    $("band").setAttribute("aria-label", outside ? `${title(map)} is not defined here` : `Nonzeros of ${title(map)}: ${texts.join(", ")}`);
    $("band-help").textContent = outside ? "" : `Nonzeros of ${title(map)} by λ`;
  }

  // ---- the maps, as cards ---------------------------------------------------------------------------------------------
  const element = (name, className, text = "") => Object.assign(document.createElement(name), { className, textContent: text });
  function buildMaps() {
    $("maps").replaceChildren(...MAPS.map((map) => {
      const card = element("label", "map"), radio = element("input", "");
      Object.assign(radio, { type: "radio", name: "map", value: map.name, checked: map.name === state.map });
      radio.addEventListener("change", () => change({ map: map.name }));
      const bars = element("ol", "");
      state.z.forEach((_, i) => {
        const line = element("li", ""), track = element("span", "track");
        track.append(element("span", "fill"));
        line.append(element("span", "", `p${subscript(i + 1)}`), track, element("span", ""));
        bars.append(line);
      });
      card.append(radio, " ", element("span", "name", title(map)), " ", element("span", "control"), element("span", "facts"), bars);
      card.dataset.map = map.name;
      return card;
    }));
  }
  function drawMaps() {
    for (const card of $("maps").children) {
      const map = BY_NAME[card.dataset.map], found = sparsegen.apply(map, state.z, state);
      card.querySelector("input").checked = map.name === state.map;
      card.querySelector(".control").textContent = map.controls.map((c) => `${SYMBOLS[c]} = ${spell(state[c])}`).join(", ");
      card.querySelector(".facts").textContent = found.outside
        ? `Not defined here: ${found.outside}.`
        : `${found.size} of ${state.z.length} nonzero, ${whole(`τ = ${spell(found.tau)},`)} ${whole(`r = ${spell(found.radius)}`)}`;
      card.querySelectorAll("li").forEach((line, i) => {
        const p = found.p?.[i];
        line.classList.toggle("nothing", !(p > 0));
        line.querySelector(".fill").style.width = `${100 * (p ?? 0)}%`;
        line.lastChild.textContent = p === undefined ? "–" : p === 0 ? "0" : p < 0.001 ? spell(p) : p.toFixed(3);
      });
    }
  }

  // ---- the formula, with its numbers -------------------------------------------------------------------------------------
  const list = (values) => `(${values.map(spell).join(", ")})`;
  const RADIUS_TEXT = {
    total: (r) => `r = (1 − λ) times their sum = ${r}`,
    dial: (r) => `r = 1 − λ = 1 − ${signed(state.lam)} = ${r}`,
    cone: (r, S, K, q) => `r = (S + Kq)/(1 + Kq) = ${r}, with S = ${spell(S)}, K = ${K}, q = ${spell(q)}`,
    hourglass: (r, S, K, q) => `r = (|S| + Kq)/(1 + Kq) = ${r}, with S = ${spell(S)}, K = ${K}, q = ${spell(q)}`,
  };
  function powerSteps(alpha, found, on) {
    const i = on[0], p = `p${subscript(i + 1)}`;
    if (alpha === 1) return [`α = 1 is the limit, softmax: ${p} = exp(z${subscript(i + 1)}) / sum exp(z) = ${spell(found.p[i])}`];
    return [
      `support {${on.map((at) => at + 1).join(", ")}}: the sum of all p is 1 at τ = ${spell(found.tau)}`,
      `${p} = (x${subscript(i + 1)} − τ)^${spell(1 / (alpha - 1))} = (${spell(found.g[i])} − ${signed(found.tau)})^${spell(1 / (alpha - 1))} = ${spell(found.p[i])}`,
    ];
  }
  function steps(map, found) {
    const z = state.z, K = z.length, on = found.p.flatMap((p, i) => (p > 0 ? [i] : []));
    const name = map.transform === "lin" && !map.power ? "z" : "x";
    const lines = [`z = ${list(z)}`];
    if (name === "x") lines.push(`x = ${map.equation.match(/\((.*),/)[1]} = ${list(found.g)}`);
    if (map.power) return [...lines, ...powerSteps(map.fixed.alpha ?? state.alpha, found, on)];
    if (map.radius === "total" && (map.fixed.lam ?? state.lam) === 0) {
      lines.push(`r = the sum of ${name} = ${spell(found.radius)}, so τ = 0`);
    } else {
      const r = spell(found.radius);
      lines.push(RADIUS_TEXT[map.radius]?.(r, sparsegen.total(z), K, map.fixed.q ?? state.q) ?? `r = ${r}`);
      if (found.radius === 0) return [...lines, `r = 0: the largest share all, each gets 1/${on.length}`];
      if (found.radius === Infinity) return [...lines, `r = ∞: every entry gets 1/${K}`];
      const terms = on.map((i) => signed(found.g[i])).join(" + ");
      lines.push(`support {${on.map((i) => i + 1).join(", ")}}, so τ = (${terms} − ${spell(found.radius)})/${on.length} = ${spell(found.tau)}`);
    }
    const i = on[0];
    lines.push(`p${subscript(i + 1)} = (${name}${subscript(i + 1)} − τ)/r = (${spell(found.g[i])} − ${signed(found.tau)})/${spell(found.radius)} = ${spell(found.p[i])}`);
    return lines;
  }
  function drawFormula() {
    const map = BY_NAME[state.map], found = sparsegen.apply(map, state.z, state);
    $("chosen-title").textContent = title(map);
    const lines = found.outside ? [`Not defined on these scores: ${found.outside}.`] : steps(map, found);
    const equation = `p = ${map.equation.replaceAll("lam", "λ").replaceAll("alpha", "α").replaceAll("-", "−")}, where project(x, r) = [x − τ]₊ / r`;
    $("formula").replaceChildren(element("p", "equation", equation), ...lines.map((text) => element("p", "", text)));
  }

  // ---- pictures ---------------------------------------------------------------------------------------------------------
  const CORNERS = [[0, 0], [1, 0], [0.5, Math.sqrt(3) / 2]];
  const CENTRE = [0.5, Math.sqrt(3) / 6];
  const onTriangle = (z) => {
    const lift = (1 - sparsegen.total(z)) / 3;
    return [0, 1].map((axis) => sparsegen.total(z.map((v, i) => (v + lift) * CORNERS[i][axis])));
  };
  const offTriangle = ([x, y], sum) => {
    const third = y / CORNERS[2][1], second = x - third / 2, lift = (sum - 1) / 3;
    return [1 - second - third + lift, second + lift, third + lift];
  };
  // Each picture: where a point of the square [0, 1]^2 lies in scores, and back.
  const PICTURES = {
    plane: {
      size: 2,
      scores: (u, v) => [(2 * u - 1) * state.reach, (1 - 2 * v) * state.reach],
      place: (z) => [(z[0] / state.reach + 1) / 2, (1 - z[1] / state.reach) / 2],
      simplex: [[1, 0], [0, 1]],
      marks: () => [[[state.reach * 0.93, state.reach * 0.05], "z₁"], [[state.reach * 0.08, state.reach * 0.9], "z₂"]],
    },
    triangle: {
      size: 3,
      scores: (u, v) => offTriangle([CENTRE[0] + (2 * u - 1) * state.span, CENTRE[1] + (1 - 2 * v) * state.span],
        sparsegen.total(state.z.slice(0, 3))),
      place: (z) => {
        const [x, y] = onTriangle(z);
        return [((x - CENTRE[0]) / state.span + 1) / 2, (1 - (y - CENTRE[1]) / state.span) / 2];
      },
      simplex: [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]],
      marks: () => [[[1.09, -0.045, -0.045], "1"], [[-0.045, 1.09, -0.045], "2"], [[-0.05, -0.05, 1.1], "3"]],
    },
  };
  const shade = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const COARSE = 72, FINE = 288;
  const kept = {}; // the coloured ground of each picture, for as long as it stays true
  let refining = 0;

  // Colour each point by the size of its support, and darken it where p_1 crosses 0.2, 0.4, 0.6 or 0.8.
  function ground(picture, map, n) {
    const fills = ["--one", "--two", "--three"].map((name) => rgb(shade(name))), line = rgb(shade("--contour")), none = rgb(shade("--card"));
    const image = new ImageData(n, n), level = new Int8Array(n * n), controls = { ...state };
    for (let at = 0; at < n * n; at++) {
      const found = sparsegen.apply(map, picture.scores(((at % n) + 0.5) / n, (Math.floor(at / n) + 0.5) / n), controls);
      level[at] = found.outside ? -1 : Math.min(4, Math.floor(found.p[0] * 5 + 1e-9));
      const edge = (at % n && level[at] !== level[at - 1]) || (at >= n && level[at] !== level[at - n]);
      image.data.set([...(found.outside ? none : edge ? line : fills[found.size - 1]), 255], 4 * at);
    }
    const canvas = Object.assign(document.createElement("canvas"), { width: n, height: n });
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }
  function groundOf(id, fine) {
    const picture = PICTURES[id], map = BY_NAME[state.map];
    const sum = id === "triangle" ? sparsegen.total(state.z.slice(0, 3)) : 0;
    const key = JSON.stringify([map.name, map.controls.map((c) => String(state[c])), state.reach, state.span, sum, shade("--page")]);
    if (kept[id]?.key !== key || (fine && kept[id].n < FINE)) kept[id] = { key, n: fine ? FINE : COARSE, canvas: ground(picture, map, fine ? FINE : COARSE) };
    return kept[id].canvas;
  }
  function drawPicture(id, fine) {
    const canvas = $(id), picture = PICTURES[id], map = BY_NAME[state.map];
    const pixels = Math.round(canvas.clientWidth * (window.devicePixelRatio || 1));
    if (canvas.width !== pixels) canvas.width = canvas.height = pixels;
    const pen = canvas.getContext("2d"), scale = pixels / (canvas.clientWidth || 1);
    pen.imageSmoothingEnabled = true;
    if (state.z.length < picture.size) {
      pen.clearRect(0, 0, pixels, pixels);
      canvas.setAttribute("aria-label", "A triangle needs three scores");
      return;
    }
    pen.drawImage(groundOf(id, fine), 0, 0, pixels, pixels);
    const at = (z) => picture.place(z).map((v) => v * pixels);
    const path = (points, colour, width, dash = []) => {
      pen.beginPath();
      points.forEach((z, i) => pen[i ? "lineTo" : "moveTo"](...at(z)));
      Object.assign(pen, { strokeStyle: shade(colour), lineWidth: width * scale });
      pen.setLineDash(dash.map((d) => d * scale));
      pen.stroke();
    };
    const write = ([x, y], text, align) => {
      Object.assign(pen, { font: `600 ${14 * scale}px system-ui, sans-serif`, fillStyle: shade("--point"), textAlign: align });
      pen.fillText(text, x, y);
    };
    const dot = (z, colour, name) => {
      const [x, y] = at(z);
      pen.beginPath();
      pen.arc(x, y, 6 * scale, 0, 7);
      Object.assign(pen, { fillStyle: shade(colour), strokeStyle: shade("--card"), lineWidth: 1.5 * scale });
      pen.setLineDash([]);
      pen.fill();
      pen.stroke();
      const left = x > 0.85 * pixels;
      write([x + (left ? -9 : 9) * scale, Math.max(16 * scale, y - 6 * scale)], name, left ? "right" : "left");
    };
    if (id === "plane") for (const axis of [[[-99, 0], [99, 0]], [[0, -99], [0, 99]]]) path(axis, "--contour", 0.6, [2, 3]);
    path(picture.simplex, "--simplex", 3);
    for (const [z, name] of picture.marks()) write(at(z), name, "center");
    const z = state.z.slice(0, picture.size), found = sparsegen.apply(map, z, state);
    if (found.p) {
      path([z, found.p], "--point", 1, [4, 3]);
      dot(found.p, "--simplex", "p");
    }
    dot(z, "--point", "z");
    canvas.setAttribute("aria-label", found.p
      ? `${title(map)} of z = ${list(z)} alone is p = ${list(found.p)}, ${found.size} nonzero`
      : `${title(map)} is not defined at z = ${list(z)}`);
  }
  function drawPictures() {
    for (const id of Object.keys(PICTURES)) drawPicture(id, false);
    clearTimeout(refining); // sharp once the hand rests
    refining = setTimeout(() => { for (const id of Object.keys(PICTURES)) drawPicture(id, true); }, 120);
    $("triangle-caption").textContent = state.z.length < 3
      ? "A triangle needs three scores."
      : `Three scores alone, z₁ to z₃, in the plane of their sum ${spell(sparsegen.total(state.z.slice(0, 3)))}.`;
  }
  function connectPicture(id) {
    const canvas = $(id), picture = PICTURES[id];
    const move = (event) => {
      if (state.z.length < picture.size) return;
      const box = canvas.getBoundingClientRect(), inside = (v) => Math.max(0, Math.min(1, v));
      const z = picture.scores(inside((event.clientX - box.left) / box.width), inside((event.clientY - box.top) / box.height));
      change({ z: [...z.map(rounded), ...state.z.slice(picture.size)] });
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      move(event);
      canvas.addEventListener("pointermove", move);
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => canvas.removeEventListener("pointermove", move));
  }

  // ---- all together -------------------------------------------------------------------------------------------------------
  function code() {
    const map = BY_NAME[state.map], spellPython = (v) => (v === Infinity ? "np.inf" : v === -Infinity ? "-np.inf" : String(v));
    return `sg.${map.name}([${state.z.join(", ")}]${map.controls.map((c) => `, ${c}=${spellPython(state[c])}`).join("")})`;
  }
  function drawShare() {
    history.replaceState(null, "", toAddress());
    $("link").value = location.href;
    $("code").value = code();
  }
  function draw() {
    drawScores(); drawDials(); drawBand(); drawMaps(); drawFormula(); drawPictures(); drawShare();
    if (document.activeElement !== $("text")) $("text").value = state.z.join(", ");
  }
  function change(what) {
    const count = state.z.length;
    Object.assign(state, what);
    if (state.z.length !== count) { buildScores(); buildMaps(); }
    draw();
  }
  // Bars and pictures are scaled to what they must show; never while a hand is dragging, or the ground would slide away.
  function fit() {
    const largest = Math.max(...state.z.map(Math.abs));
    state.range = Math.max(3, Math.ceil(largest));
    state.reach = Math.max(2, 1.25 * Math.max(...state.z.slice(0, 2).map(Math.abs)));
    const [x, y] = onTriangle([...state.z, 0].slice(0, 3));
    state.span = Math.max(1, 1.3 * Math.hypot(x - CENTRE[0], y - CENTRE[1]));
    buildScores();
  }
  function connect() {
    connectDials();
    for (const id of Object.keys(PICTURES)) connectPicture(id);
    $("text").addEventListener("input", () => {
      const z = numbers($("text").value), good = goodScores(z);
      $("text").setAttribute("aria-invalid", !good);
      if (good) { change({ z }); fit(); draw(); }
    });
    $("text").addEventListener("blur", () => { $("text").setAttribute("aria-invalid", false); draw(); });
    $("fewer").addEventListener("click", () => state.z.length > LEAST && change({ z: state.z.slice(0, -1) }));
    $("more").addEventListener("click", () => state.z.length < MOST && change({ z: [...state.z, 0] }));
    $("shuffle").addEventListener("click", () => { change({ z: state.z.map(() => rounded(3 * Math.random() - 1)) }); fit(); draw(); });
    $("copy").addEventListener("click", copy);
    window.addEventListener("hashchange", () => { fromAddress(location.hash); fit(); buildMaps(); draw(); });
    window.addEventListener("resize", () => { buildScores(); draw(); });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  }
  async function copy() {
    $("link").select();
    try { await navigator.clipboard.writeText($("link").value); } catch { document.execCommand("copy"); }
    $("copy").textContent = "Copied";
    setTimeout(() => { $("copy").textContent = "Copy"; }, 1500);
  }

  fromAddress(location.hash || document.body.dataset.start);
  fit();
  buildMaps();
  connect();
  draw();
})();
