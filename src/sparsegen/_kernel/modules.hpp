// Small calls of the modules of torch/_mapping.py: torch's own way through a module costs as much as its softmax. A module that
// nobody has hooked, wrapped or changed is read here, and its map called at once.
#pragma once
#include <cmath>

#include "tensors.hpp"

namespace sparsegen {

// Borrowed; null where it is not there.
inline PyObject* entry(PyObject* dict, PyObject* name) { return dict ? PyDict_GetItemWithError(dict, name) : nullptr; }

inline bool is_empty_dict(PyObject* d) { return d && PyDict_Check(d) && PyDict_Size(d) == 0; }

// Would torch do no more than call forward(), and is that our own?
inline bool is_bare(PyObject* module, PyObject* state) {
  for (PyObject* name : names().hooks)
    if (!is_empty_dict(entry(state, name))) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(torch.hooks); ++i)
    if (!is_empty_dict(PyTuple_GET_ITEM(torch.hooks, i))) return false;
  PyObject* const compiled = entry(state, names().compiled);
  if ((compiled && compiled != Py_None) || entry(state, names().forward)) return false;
  return Owned(PyObject_GetAttr(reinterpret_cast<PyObject*>(Py_TYPE(module)), names().forward)).is(torch.forward);
}

// Is the gradient of this tensor asked for?
inline bool is_asked(PyObject* t) { return !attribute_is(t, names().requires_grad, Py_False); }

// The one number of a plain tensor on the CPU, of float32 or float64.
struct OneNumber {
  double value = 0;
  bool found = false, wide = false;

  explicit OneNumber(PyObject* t) {
    Shown shown;
    if (!torch.shows() || !is_plain(t) || !method_is(t, names().is_neg, Py_False) || torch.exchange->show(t, &shown) != 0) return;
    const int storage = storage_of(shown);
    found = shown.device == kCpu && shown.axes == 0 && shown.data && (storage == 0 || storage == 1);
    if (!found) return;
    wide = storage == 1;
    const char* const at = shown.data + shown.offset;
    value = wide ? *reinterpret_cast<const double*>(at) : double(*reinterpret_cast<const float*>(at));
  }
};

// What a module keeps as `_plan`: how its map is called. See Mapping._planned() of torch/_mapping.py.
struct Plan {
  enum Part { none, radius, second };  // what its control is
  PyObject* transform = nullptr;       // for which it was made: it may be set anew
  int kind = 0;
  Part part = none;
  double told[2];            // radius and the other number, where they are no control
  double offset;             // of the other number from the form in which the control is kept
  double low[2], high[2];    // of theta, in float32 and in float64

  explicit Plan(PyObject* plan) {
    if (!plan || !PyTuple_CheckExact(plan) || PyTuple_GET_SIZE(plan) != 10) return;
    const auto number = [=](int i) { return PyFloat_AsDouble(PyTuple_GET_ITEM(plan, i)); };
    kind = int(number(1)), part = Part(number(2)), told[0] = number(3), told[1] = number(4), offset = number(5);
    low[0] = number(6), high[0] = number(7), low[1] = number(8), high[1] = number(9);
    transform = PyErr_Occurred() ? nullptr : PyTuple_GET_ITEM(plan, 0);
  }
  explicit operator bool() const { return transform != nullptr; }

  void tell(double control) { told[part == second] = part == second ? offset + control : control; }

  // As theta's type has it: what a module says its control is, is what its map is told, and log(1/2) is that of 1/2.
  double exp_of(const OneNumber& theta) const {
    const double least = low[theta.wide], most = high[theta.wide];
    const double exact = std::exp(theta.value < least ? least : theta.value > most ? most : theta.value);  // NaN stays
    return theta.wide ? exact : double(float(exact));
  }
};

// The plan of a module that may be called by it, with its control as it is now; empty where more has to be asked.
inline Plan plan_of(PyObject* module, PyObject* state, bool records) {
  Plan plan(entry(state, names().plan)), nothing(nullptr);
  PyObject *const transform = entry(state, names().transform), *const axis = entry(state, names().dim);
  if (!plan || (transform ? transform : Py_None) != plan.transform || !axis || !PyLong_CheckExact(axis)) return nothing;
  if (PyLong_AsLong(axis) != -1 || !is_bare(module, state)) return nothing;
  if (plan.part == Plan::none) return plan;
  PyObject* const theta = entry(entry(state, names().parameters), names().theta);
  PyObject* const kept = theta ? theta : entry(entry(state, names().buffers), names().control);
  if (!kept || (records && theta && is_asked(theta))) return nothing;
  const OneNumber number(kept);
  if (!number.found) return nothing;
  plan.tell(theta ? plan.exp_of(number) : number.value);
  return plan;
}

}  // namespace sparsegen
