#if defined(__x86_64__) || defined(_M_X64)
#define SPARSEGEN_ISA avx512
#include "attention.hpp"
#include "dual.hpp"
#include "hinge.hpp"
#include "map_vjp.hpp"
#include "maps.hpp"
#include "rows.hpp"

namespace sparsegen {

extern const Engine engine_avx2;

// Gradients for which 256 bits are measured faster (docs/decisions/0016). Vectors of 512 bits cross a line of memory each where
// rows are not whole lines, and short rows spend their time on loads and stores; rows of halves are narrowed by eights; and long
// rows come from memory a little faster by halves of lines, those of doubles as soon as sixteen do not fit the first cache.
static bool narrow(const VjpJob& job) {
  if (job.K <= 32) return false;
  const bool halves = job.storage == Storage::float16 || job.storage == Storage::bfloat16;
  if (halves && job.words && job.strides.entry == 1) return false;  // see stored.hpp
  if (job.storage == Storage::float16) return true;
  if (job.storage == Storage::bfloat16) return job.K <= avx512::kVjpGroupLimit;
  if (job.K <= avx512::kVjpSixteenLimit) return false;
  // Whether words were kept or not: a row's bits do not depend on it.
  if (job.storage == Storage::float64 || job.K >= avx512::kSkipFrom) return true;
  return job.K <= avx512::kVjpGroupLimit && !job.words && job.K % 16;
}

static void vjp(const VjpJob& job, int64_t begin, int64_t end) {
  (narrow(job) ? engine_avx2.vjp : avx512::vjp)(job, begin, end);
}

extern const Engine engine_avx512{"avx512", avx512::project, vjp, avx512::map, avx512::map_vjp, avx512::means, avx512::hinge,
                          avx512::dual_pass, avx512::dual_values, avx512::dual_weights,
                          avx512::attention, avx512::attention_vjp_rows, avx512::attention_vjp_keys};
}  // namespace sparsegen
#endif
