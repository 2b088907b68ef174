#define SPARSEGEN_ISA plain
#include "hinge.hpp"
#include "rows.hpp"

namespace sparsegen {
extern const Engine engine_plain{"plain", plain::project, plain::vjp, plain::means, plain::hinge};
}  // namespace sparsegen
