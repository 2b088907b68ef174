// Small calls on torch's tensors. To ask one for its type, sizes and address costs more than to map it, and from Python twice
// as much as from here: so the questions are asked through Python's own interface, or all of them at once by DLPack's table of
// functions where torch has one, and nothing of torch is needed to build this. Whatever is unusual is answered by None, and asked
// again, at length, by torch/_cpu.py.
#pragma once
#include <Python.h>

#include <cstdint>
#include <utility>

#include "job.hpp"

namespace sparsegen {

// A reference that is given up at the end of its scope; empty after an error.
class Owned {
 public:
  explicit Owned(PyObject* object = nullptr) : object_(object) {}
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Owned() { Py_XDECREF(object_); }
  explicit operator bool() const { return object_ != nullptr; }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  bool is(PyObject* other) const { return object_ == other; }

 private:
  PyObject* object_;
};

// A tensor as DLPack shows it, and the functions by which a library does; both are laid out as the standard says (version 1).
struct Shown {
  char* data;
  int32_t device, device_index, axes;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *sizes, *strides;
  uint64_t offset;
};
struct Exchange {
  uint32_t major, minor;
  const void* older;
  void *make, *take, *give;
  int (*show)(void* object, Shown* shown);  // may be null
};

// What torch/_route.py hands over once: torch's types and functions, of which none is looked up here. Kept for ever.
struct Torch {
  PyObject *tensor = nullptr, *parameter = nullptr, *storages = nullptr;        // storages: a tuple of types, as Storage has them
  PyObject *empty_like = nullptr, *wide = nullptr, *threads = nullptr;          // wide: makes float64 numbers of a size
  PyObject *modes = nullptr, *tracing = nullptr, *functorch = nullptr, *levels = nullptr;  // levels: where forward mode counts
  PyObject *records = nullptr, *level = nullptr, *address = nullptr;  // level, address: names of an entry and a method
  PyObject* truth = nullptr;                                          // the type of masks
  PyObject* deferred = nullptr;                                       // is a tensor a copy that was put off?
  PyObject *forward = nullptr, *hooks = nullptr;  // of our modules, and of all modules: a tuple of dicts
  const Exchange* exchange = nullptr;             // null where this torch has none

  bool shows() const { return exchange && exchange->major == 1 && exchange->show; }
};
inline Torch torch;

// Names that are asked for in every call.
struct Names {
  PyObject* operator()(const char* name) const { return PyUnicode_InternFromString(name); }
  PyObject *dtype = (*this)("dtype"), *shape = (*this)("shape"), *is_cpu = (*this)("is_cpu"), *is_neg = (*this)("is_neg"),
           *is_contiguous = (*this)("is_contiguous"), *contiguous = (*this)("contiguous"), *data_ptr = (*this)("data_ptr"),
           *requires_grad = (*this)("requires_grad"), *dim = (*this)("dim"), *item = (*this)("item"), *forward = (*this)("forward"),
           *plan = (*this)("_plan"), *transform = (*this)("transform"), *parameters = (*this)("_parameters"),
           *buffers = (*this)("_buffers"), *theta = (*this)("theta"), *control = (*this)("control"),
           *compiled = (*this)("_compiled_call_impl");
  PyObject* hooks[4] = {(*this)("_forward_hooks"), (*this)("_forward_pre_hooks"), (*this)("_backward_hooks"),
                        (*this)("_backward_pre_hooks")};
};
inline const Names& names() {
  static const Names found;
  return found;
}

inline bool attribute_is(PyObject* t, PyObject* name, PyObject* value) { return Owned(PyObject_GetAttr(t, name)).is(value); }
inline bool method_is(PyObject* t, PyObject* name, PyObject* value) { return Owned(PyObject_CallMethodNoArgs(t, name)).is(value); }
inline bool function_is(PyObject* f, PyObject* value) { return Owned(PyObject_CallNoArgs(f)).is(value); }

inline int64_t number(const Owned& found, int64_t otherwise) {
  const int64_t value = found ? PyLong_AsLongLong(found.get()) : -1;
  return PyErr_Occurred() ? otherwise : value;
}

// Is nothing under way that could see a tensor otherwise than the kernel does? Compiling is asked for in Python, where the
// compiler sees the question.
inline bool idle() {
  PyObject* level = PyDict_GetItemWithError(torch.levels, torch.level);
  return level && PyLong_AsLong(level) < 0 && number(Owned(PyObject_CallNoArgs(torch.modes)), 1) == 0 &&
         function_is(torch.tracing, Py_False) && function_is(torch.functorch, Py_False);
}

// Does torch record what is done to tensors whose gradients are asked for?
inline bool is_recording() { return !function_is(torch.records, Py_False); }

inline bool is_plain(PyObject* t) {
  return Py_TYPE(t) == reinterpret_cast<PyTypeObject*>(torch.tensor) || Py_TYPE(t) == reinterpret_cast<PyTypeObject*>(torch.parameter);
}

inline constexpr int32_t kCpu = 1;  // DLPack's numbers for devices and kinds of numbers
inline constexpr uint8_t kFloating = 2, kBfloat = 4;

// The storage type of what is shown, or -1.
inline int storage_of(const Shown& shown) {
  if (shown.lanes != 1) return -1;
  if (shown.code == kBfloat) return shown.bits == 16 ? 3 : -1;
  return shown.code != kFloating ? -1 : shown.bits == 32 ? 0 : shown.bits == 64 ? 1 : shown.bits == 16 ? 2 : -1;
}

// Rows in one piece along the last axis of a plain tensor on the CPU; no rows for any other.
struct TensorRows {
  int storage = -1;
  int64_t rows = 0, K = 0;
  uintptr_t at = 0;
  explicit operator bool() const { return rows > 0; }

  explicit TensorRows(PyObject* t) {
    if (!is_plain(t) || !method_is(t, names().is_neg, Py_False)) return;
    if (torch.shows()) read(t);
    else if (find_storage(t)) find_rows(t);
  }

  int64_t entries() const { return rows * K; }
  bool same(const TensorRows& other) const { return storage == other.storage && rows == other.rows && K == other.K; }

 protected:
  TensorRows() = default;

  void find_rows(PyObject* t) {
    if (!attribute_is(t, names().is_cpu, Py_True) || !method_is(t, names().is_contiguous, Py_True)) return;
    const int64_t entries = find_sizes(t);
    // 0 is where torch keeps zeros that it never wrote.
    at = entries ? uintptr_t(number(Owned(PyObject_CallMethodNoArgs(t, torch.address)), 0)) : 0;
    rows = at ? entries / K : 0;
  }

 private:
  // All at once. To be shown a copy that was put off would make it.
  void read(PyObject* t) {
    Shown shown;
    if (!Owned(PyObject_CallOneArg(torch.deferred, t)).is(Py_False) || torch.exchange->show(t, &shown) != 0) return;
    storage = storage_of(shown);
    if (shown.device != kCpu || storage < 0 || shown.axes < 1) return;
    int64_t entries = 1;
    for (int i = shown.axes - 1; i >= 0; entries *= shown.sizes[i--])
      if (shown.strides && shown.sizes[i] != 1 && shown.strides[i] != entries) return;
    K = shown.sizes[shown.axes - 1];
    at = entries ? reinterpret_cast<uintptr_t>(shown.data) + shown.offset : 0;
    rows = at ? entries / K : 0;
  }

  bool find_storage(PyObject* t) {
    const Owned dtype(PyObject_GetAttr(t, names().dtype));
    for (int i = 0; i < 4; ++i)
      if (dtype.is(PyTuple_GET_ITEM(torch.storages, i))) storage = i;
    return storage >= 0;
  }

  int64_t find_sizes(PyObject* t) {
    const Owned shape(PyObject_GetAttr(t, names().shape));
    if (!shape || !PyTuple_Check(shape.get())) return 0;
    int64_t entries = 1;
    const Py_ssize_t axes = PyTuple_GET_SIZE(shape.get());
    for (Py_ssize_t i = 0; i < axes; ++i) entries *= K = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.get(), i));
    return axes ? entries : 0;
  }
};

// The mask of such rows, which is known to broadcast with them: one for each, or one for all. It does not fit if it is another.
class TensorMask : TensorRows {
 public:
  TensorMask(PyObject* t, const TensorRows& x) : none_(t == Py_None) {
    if (none_ || !is_plain(t) || !attribute_is(t, names().dtype, torch.truth)) return;
    find_rows(t);
    fits_ = rows && K == x.K && (rows == x.rows || rows == 1);
    one_ = fits_ && rows < x.rows;
  }
  bool fits() const { return none_ || fits_; }
  uintptr_t bytes() const { return at; }
  uintptr_t offsets() const { return one_ ? reinterpret_cast<uintptr_t>(kOneMask) : 0; }

 private:
  bool none_, fits_ = false, one_ = false;
};

// A new tensor, and where to write it.
struct NewTensor {
  Owned tensor;
  uintptr_t at;
  explicit NewTensor(PyObject* made)
      : tensor(made), at(made ? uintptr_t(number(Owned(PyObject_CallMethodNoArgs(made, names().data_ptr)), 0)) : 0) {}
  explicit operator bool() const { return at != 0; }
  static NewTensor like(PyObject* t) { return NewTensor(PyObject_CallOneArg(torch.empty_like, t)); }
  static NewTensor wide(int64_t size) { return NewTensor(PyObject_CallOneArg(torch.wide, Owned(PyLong_FromLongLong(size)).get())); }
};

inline int threads_for(const TensorRows& x, int64_t chunk) {
  return x.rows * x.K < chunk ? 1 : int(number(Owned(PyObject_CallNoArgs(torch.threads)), 1));
}

}  // namespace sparsegen
