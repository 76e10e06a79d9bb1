#pragma once

#include <torch/types.h>

#include <filesystem>

namespace qat::apps {

/// Reads the images of an IDX file of MNIST's format: the magic number 0x00000803, the three counts items,
/// rows and columns (all big-endian 32 bit), then one byte a pixel. The file may be gzip-compressed; its
/// first bytes decide that, not its name. The counts are compared with what the file holds before memory is
/// taken for them.
///
/// Shape: uint8 `[items, 1, rows, columns]`.
/// Throws: `c10::Error` naming the file, with the expected and the found bytes, when the file is missing,
/// empty, of another format, shorter or longer than its header says, damaged, or holds no pixel.
torch::Tensor read_idx_images(const std::filesystem::path& path);

/// Reads the labels of an IDX file: the magic number 0x00000801, the count of items, then one byte a label.
///
/// Shape: int64 `[items]`. Range: 0 to `classes` - 1.
/// Throws: `c10::Error` as `read_idx_images`, and when a label is out of range.
torch::Tensor read_idx_labels(const std::filesystem::path& path, int64_t classes);

}  // namespace qat::apps
