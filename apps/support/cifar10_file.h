#pragma once

#include <filesystem>

#include "support/image_set.h"

namespace qat::apps {

/// Reads one file of CIFAR-10's binary version (`data_batch_1.bin`, ...): records of 3073 bytes, one label
/// byte and then 32 x 32 bytes each of red, green and blue. Any number of records from 1 up is accepted.
///
/// Shape: images uint8 `[N, 3, 32, 32]`, labels int64 `[N]`. Range: labels 0 to 9.
/// Throws: `c10::Error` naming the file when it is missing, empty, compressed, not a multiple of 3073 bytes
/// long, or has a label above 9.
ImageSet read_cifar10(const std::filesystem::path& path);

}  // namespace qat::apps
