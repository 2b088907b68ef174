#define SPARSEGEN_ISA plain
#include "attention.hpp"
#include "dual.hpp"
#include "hinge.hpp"
#include "map_vjp.hpp"
#include "maps.hpp"
#include "rows.hpp"

namespace sparsegen {
extern const Engine engine_plain{"plain", plain::project, plain::vjp, plain::map, plain::map_vjp, plain::means, plain::hinge,
                          plain::dual_pass, plain::dual_values, plain::dual_weights,
                          plain::attention, plain::attention_vjp_rows, plain::attention_vjp_keys};
}  // namespace sparsegen
