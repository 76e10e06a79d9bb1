#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>

namespace qat {

/// What a `.qat` file says of itself.
///
/// The file: 8 bytes "QATMODEL", format version (uint32), lengths of the header and of the payload (uint64
/// each), little endian, SHA-256 (32 bytes) of all that follows; then the header, a JSON object (version,
/// digest, entries, structure: names and shapes of all tensors; with an optimizer its type and the names in
/// its groups), and the payload, a torch archive with the model's parameters, buffers, slots and links, then
/// one with the optimizer's options and state.
struct CheckpointInfo {
  std::map<std::string, std::string>
      entries;         ///< texts of the caller: configuration, state of the scheduler, ...
  std::string digest;  ///< model_digest of the saved model.
};

/// SHA-256, hex, over names, types, shapes and bytes of all parameters and buffers, in the order of their
/// names.
std::string model_digest(const torch::nn::Module& model);

/// Writes to a temporary name, then renames. Throws: c10::Error naming the file if it cannot be written; no
/// partial file stays, a file that was there before stays as it was. c10::ValueError if the optimizer trains
/// a tensor that is no parameter of the model.
/// `optimizer`: any of torch's; nullptr: none is stored.
CheckpointInfo save_checkpoint(const std::string& path, torch::nn::Module& model,
                               const std::map<std::string, std::string>& entries,
                               const torch::optim::Optimizer* optimizer = nullptr);
/// Reads and checks the header and the digest of the payload; no model needed.
/// Throws: c10::Error naming the file: empty, cut ("expected N bytes, found M"), foreign ("no .qat file"),
/// damaged.
CheckpointInfo read_checkpoint_info(const std::string& path);
/// Loads into a model of the same structure, in whatever phase it was saved (slots are created, folded
/// BatchNorms become the identity) and in whatever phase the model is. Links are rebuilt. Devices of the
/// model's tensors stay. Parameters keep their identity where the file has them too, those of quantizers
/// where the slot holds one of the same configuration: an optimizer goes on with them. A model that is in
/// another phase gains or loses parameters; build the optimizer afterwards then. All or nothing: on any error
/// the model has the modules, parameters and bits that it had. Throws: as read_checkpoint_info; naming
/// tensors, types and shapes that do not fit.
CheckpointInfo load_checkpoint(const std::string& path, torch::nn::Module& model);
/// Gives an optimizer the groups, options (learning rates) and state (momenta, step counts) that it had,
/// whatever groups it has now: training goes on to the bit. All or nothing.
/// `model`: loaded from the same file before; with a scheduler, restored before.
/// Throws: as read_checkpoint_info; c10::ValueError if the file holds no optimizer or one of another type, or
/// the model lacks a parameter.
///
///   load_checkpoint(path, *model);
///   QATScheduler scheduler(model, ..., &optimizer);
///   scheduler.restore(state);
///   load_optimizer(path, *model, optimizer);
void load_optimizer(const std::string& path, torch::nn::Module& model, torch::optim::Optimizer& optimizer);

}  // namespace qat
