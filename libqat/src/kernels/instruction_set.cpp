#include "kernels/instruction_set.h"

namespace qat::kernels {

bool is_supported(InstructionSet set) {
#if defined(__x86_64__)
  switch (set) {
    case InstructionSet::kDefault:
      return true;
    case InstructionSet::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    case InstructionSet::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl") && is_supported(InstructionSet::kAvx2);
  }
  return false;
#else
  return set == InstructionSet::kDefault;
#endif
}

InstructionSet best_instruction_set() {
  static const InstructionSet best = is_supported(InstructionSet::kAvx512) ? InstructionSet::kAvx512
                                     : is_supported(InstructionSet::kAvx2) ? InstructionSet::kAvx2
                                                                           : InstructionSet::kDefault;
  return best;
}

}  // namespace qat::kernels
