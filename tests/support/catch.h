#pragma once

// The only way to include Catch2. Torch comes first: its logging header and Catch2 both define CHECK, and
// with torch last CHECK silently becomes the one that kills the process.
#include <torch/autograd.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/serialize.h>
#undef CHECK

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#define CATCH_CONFIG_ENABLE_BENCHMARKING
#include <catch2/catch.hpp>
#endif
