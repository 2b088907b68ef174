#if defined(__x86_64__) || defined(_M_X64)
#define SPARSEGEN_ISA avx2
#include "attention.hpp"
#include "dual.hpp"
#include "hinge.hpp"
#include "map_vjp.hpp"
#include "maps.hpp"
#include "rows.hpp"

namespace sparsegen {
extern const Engine engine_avx2{"avx2", avx2::project, avx2::vjp, avx2::map, avx2::map_vjp, avx2::means, avx2::hinge,
                          avx2::dual_pass, avx2::dual_values, avx2::dual_weights,
                          avx2::attention, avx2::attention_vjp_rows, avx2::attention_vjp_keys};
}  // namespace sparsegen
#endif
