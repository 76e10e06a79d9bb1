#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <vector>

namespace qat::detail {

/// Takes a parameter out of its group and erases its state, which is keyed by the tensor's address: a later
/// tensor there would inherit it.
void remove_parameter(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter);

bool holds_parameter(const torch::optim::Optimizer& optimizer, const torch::Tensor& parameter);

/// A parameter that folding made: a bias, or the scale or shift of a BatchNorm.
struct AddedParameter {
  torch::Tensor parameter;
  torch::Tensor neighbour;  ///< stands before it: the weight of its layer. May itself be an added one.
  torch::Tensor former;     ///< the BatchNorm's bias, which goes; undefined if there is none.
};

/// Adds parameters, before the former ones are removed. Weight decay is for weights: a parameter joins the
/// group of the BatchNorm's bias. If there was none, it joins its neighbour's group where that has no decay;
/// else it gets a group with the options of the neighbour's and no decay, at the end. If the optimizer holds
/// neither, it does not train the parameter. Saved optimizers know their parameters by position: within a
/// group it follows its neighbour or takes the place of the former one, as in an optimizer that is built for
/// the folded model.
void add_parameters(torch::optim::Optimizer& optimizer, const std::vector<AddedParameter>& added);

/// Throws: c10::ValueError for an optimizer that has one group only (LBFGS).
void check_has_groups(const torch::optim::Optimizer& optimizer);

/// Puts the parameters of quantizers into a group of their own: with the options of the first group, its rate
/// times `rate_scale`, without weight decay. Those in a group that they share with others are moved, those in
/// no group are added if they train. A group that holds nothing but parameters of quantizers stays as it is
/// and takes up the moved ones. State is kept. Nothing to move, no new group. Throws: c10::ValueError for
/// optimizers that have one group only (LBFGS), naming them.
void group_quantizer_parameters(torch::optim::Optimizer& optimizer,
                                const std::vector<torch::Tensor>& parameters, double rate_scale);

}  // namespace qat::detail
