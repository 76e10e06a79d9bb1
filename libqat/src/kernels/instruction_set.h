#pragma once

#include <cstdint>

namespace qat::kernels {

/// The instruction sets that the kernels are compiled for. All give the same bits.
enum class InstructionSet : std::int8_t { kDefault, kAvx2, kAvx512 };

/// Whether this processor can run it.
bool is_supported(InstructionSet set);

/// The widest one that this processor can run.
InstructionSet best_instruction_set();

}  // namespace qat::kernels
