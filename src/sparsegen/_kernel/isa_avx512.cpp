#if defined(__x86_64__) || defined(_M_X64)
#define SPARSEGEN_ISA avx512
#include "attention.hpp"
#include "hinge.hpp"
#include "map_vjp.hpp"
#include "maps.hpp"
#include "rows.hpp"

namespace sparsegen {
extern const Engine engine_avx512{"avx512", avx512::project, avx512::vjp, avx512::map, avx512::map_vjp, avx512::means, avx512::hinge,
                          avx512::attention, avx512::attention_vjp_rows, avx512::attention_vjp_keys};
}  // namespace sparsegen
#endif
