#define SPARSEGEN_ISA plain
#include "attention.hpp"
#include "hinge.hpp"
#include "map_vjp.hpp"
#include "maps.hpp"
#include "rows.hpp"

namespace sparsegen {
extern const Engine engine_plain{"plain", plain::project, plain::vjp, plain::map, plain::map_vjp, plain::means, plain::hinge,
                          plain::attention, plain::attention_vjp_rows, plain::attention_vjp_keys};
}  // namespace sparsegen
