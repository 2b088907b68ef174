#define SPARSEGEN_ISA plain
#include "rows.hpp"

namespace sparsegen {
extern const Engine engine_plain{"plain", plain::project, plain::vjp, plain::means};
}  // namespace sparsegen
