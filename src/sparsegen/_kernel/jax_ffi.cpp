// XLA's view of the kernel: handlers for the CPU that work on XLA's own threads. Nothing of jaxlib is linked, and the engine is
// the one that _core has chosen: this module only translates.
#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"

#include "job.hpp"
#include "threads.hpp"

namespace nb = nanobind;
namespace ffi = xla::ffi;

namespace sparsegen {

using Any = ffi::AnyBuffer;
using Out = ffi::Result<ffi::AnyBuffer>;

static const Engine* const* engine = nullptr;  // where _core keeps its choice

// What the caller and the threads that XLA lends have in common. One that comes after the work is done finds it closed; the
// caller waits for those that have begun, never for one that is still in a queue.
class Helpers {
 public:
  explicit Helpers(Share& share) : share_(share) {}

  void help() {
    {
      const std::lock_guard<std::mutex> hold(state_);
      if (closed_) return;
      ++busy_;
    }
    share_.run();
    const std::lock_guard<std::mutex> hold(state_);
    if (--busy_ == 0) idle_.notify_one();
  }

  void close() {
    std::unique_lock<std::mutex> hold(state_);
    closed_ = true;
    idle_.wait(hold, [&] { return busy_ == 0; });
  }

 private:
  Share& share_;
  std::mutex state_;
  std::condition_variable idle_;
  int busy_ = 0;
  bool closed_ = false;
};

template <class J>
static void run(ffi::ThreadPool& pool, const J& job, void (*work)(const J&, int64_t, int64_t)) {
  const int64_t rows = job.rows(), chunk = rows_a_turn(job);
  if (job.threads <= 1 || rows <= chunk || rows * job.K < kChunkEntries) {
    const StandardArithmetic standard;
    return work(job, 0, rows);
  }
  const Body body = [&](int64_t begin, int64_t end) { work(job, begin, end); };
  Share share(body, rows, chunk);
  const auto helpers = std::make_shared<Helpers>(share);
  const int64_t wanted = std::min<int64_t>(job.threads, (rows + chunk - 1) / chunk) - 1;
  for (int64_t i = 0; i < wanted; ++i) pool.Schedule([helpers] { helpers->help(); });
  share.run();
  helpers->close();
  share.finish();
}

// Which storage the kernel calls XLA's type, or -1.
static int storage_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F32: return int(Storage::float32);
    case ffi::DataType::F64: return int(Storage::float64);
    case ffi::DataType::F16: return int(Storage::float16);
    case ffi::DataType::BF16: return int(Storage::bfloat16);
    default: return -1;
  }
}

// Rows along the axis of `x` that has `after` axes behind it: vmap adds axes in front, which changes nothing.
static Job job_of(ffi::ThreadPool& pool, Any x, int64_t after) {
  const auto dims = x.dimensions();
  const int64_t axis = int64_t(dims.size()) - 1 - after;
  Job job{Storage(storage_of(x.element_type())), 1, 1, 1, nullptr, false, int(std::max<int64_t>(1, pool.num_threads()))};
  for (int64_t i = 0; i < int64_t(dims.size()); ++i) (i < axis ? job.outer : i == axis ? job.K : job.inner) *= dims[i];
  return job;
}

static Strides strides_of(const Job& job) { return {job.K * job.inner, job.inner, 1}; }

// Numbers in double precision, one for each row or, where XLA has fewer, one for each of its first axes; one alone stays one.
static std::vector<double> widened(Any numbers, int64_t rows) {
  const int64_t count = int64_t(numbers.element_count()), each = count > 1 ? rows / count : 1;
  std::vector<double> wide(count > 1 ? size_t(rows) : 1);
  const bool narrow = numbers.element_type() == ffi::DataType::F32;
  for (size_t i = 0; i < wide.size(); ++i) {
    const int64_t at = int64_t(i) / each;
    wide[i] = narrow ? double(numbers.typed_data<float>()[at]) : numbers.typed_data<double>()[at];
  }
  return wide;
}

static void narrow_to(Out out, const std::vector<double>& wide) {
  if (out->element_type() == ffi::DataType::F32) std::copy(wide.begin(), wide.end(), out->typed_data<float>());
  else std::copy(wide.begin(), wide.end(), out->typed_data<double>());
}

// What all handlers have in common: types and sizes that the kernel can take, and failures as XLA wants to hear of them.
template <class F>
static ffi::Error guarded(Any x, F&& work) {
  if (storage_of(x.element_type()) < 0) return ffi::Error(ffi::ErrorCode::kInvalidArgument, "sparsegen: not a float type");
  if (x.element_count() == 0) return ffi::Error::Success();
  try {
    work();
  } catch (const std::exception& failure) {
    return ffi::Error(ffi::ErrorCode::kInternal, std::string("sparsegen: ") + failure.what());
  }
  return ffi::Error::Success();
}

static ffi::Error project(ffi::ThreadPool pool, Any x, Any radius, Out p, int64_t after) {
  return guarded(x, [&] {
    Job rows = job_of(pool, x, after);
    const std::vector<double> r = widened(radius, rows.rows());
    rows.radius = r.data(), rows.radius_per_row = r.size() > 1;
    const Strides strides = strides_of(rows);
    run(pool, ProjectJob{rows, x.untyped_data(), strides, p->untyped_data(), strides, nullptr, nullptr, nullptr, nullptr},
        (*engine)->project);
  });
}

static ffi::Error project_vjp(ffi::ThreadPool pool, Any p, Any v, Any radius, Out grad, int64_t after) {
  return guarded(p, [&] {
    Job rows = job_of(pool, p, after);
    const std::vector<double> r = widened(radius, rows.rows());
    rows.radius = r.data(), rows.radius_per_row = r.size() > 1;
    run(pool, VjpJob{rows, p.untyped_data(), v.untyped_data(), grad->untyped_data(), strides_of(rows), nullptr},
        (*engine)->vjp);
  });
}

static ffi::Error row_means(ffi::ThreadPool pool, Any x, Out mean, Out count, int64_t after) {
  return guarded(x, [&] {
    const Job rows = job_of(pool, x, after);
    std::vector<double> means(size_t(rows.rows())), counts(size_t(rows.rows()));
    run(pool, MeanJob{rows, x.untyped_data(), strides_of(rows), nullptr, nullptr, means.data(), counts.data()},
        (*engine)->means);
    narrow_to(mean, means), narrow_to(count, counts);
  });
}

// Labels as the kernel has them, compressed rows, of one byte for each entry.
static void compress(const bool* labels, int64_t rows, int64_t K, std::vector<int64_t>& indptr, std::vector<int64_t>& indices) {
  indptr.assign(1, 0);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < K; ++k)
      if (labels[row * K + k]) indices.push_back(k);
    indptr.push_back(int64_t(indices.size()));
  }
}

static ffi::Error hinge(ffi::ThreadPool pool, Any z, Any radius, Any labels, Out value, Out slope, Out grad) {
  return guarded(z, [&] {
    Job rows = job_of(pool, z, 0);
    const std::vector<double> r = widened(radius, rows.rows());
    rows.radius = r.data(), rows.radius_per_row = r.size() > 1;
    std::vector<int64_t> indptr, indices;
    compress(labels.typed_data<bool>(), rows.rows(), rows.K, indptr, indices);
    std::vector<double> values(size_t(rows.rows())), slopes(size_t(rows.rows()));
    run(pool, HingeJob{rows, z.untyped_data(), nullptr, nullptr, indptr.data(), indices.data(), 0.0, values.data(),
                       slopes.data(), grad->untyped_data()},
        (*engine)->hinge);
    narrow_to(value, values), narrow_to(slope, slopes);
  });
}

#define BIND ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()
XLA_FFI_DEFINE_HANDLER(project_handler, project, BIND.Arg<Any>().Arg<Any>().Ret<Any>().Attr<int64_t>("after"));
XLA_FFI_DEFINE_HANDLER(vjp_handler, project_vjp,
                       BIND.Arg<Any>().Arg<Any>().Arg<Any>().Ret<Any>().Attr<int64_t>("after"));
XLA_FFI_DEFINE_HANDLER(means_handler, row_means, BIND.Arg<Any>().Ret<Any>().Ret<Any>().Attr<int64_t>("after"));
XLA_FFI_DEFINE_HANDLER(hinge_handler, hinge, BIND.Arg<Any>().Arg<Any>().Arg<Any>().Ret<Any>().Ret<Any>().Ret<Any>());

template <class F>
static nb::capsule capsule(F* handler) {
  return nb::capsule(reinterpret_cast<void*>(handler));
}

NB_MODULE(_jax_ffi, m) {
  const std::string api = std::to_string(XLA_FFI_API_MAJOR) + "." + std::to_string(XLA_FFI_API_MINOR);
  m.attr("API") = nb::str(api.c_str());
  m.def("handlers", [](uintptr_t engine_address) {
    engine = reinterpret_cast<const Engine* const*>(engine_address);
    nb::dict found;
    found["sparsegen_project"] = capsule(project_handler);
    found["sparsegen_project_vjp"] = capsule(vjp_handler);
    found["sparsegen_row_means"] = capsule(means_handler);
    found["sparsegen_hinge"] = capsule(hinge_handler);
    return found;
  });
}

}  // namespace sparsegen
