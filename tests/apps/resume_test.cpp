// A run that was stopped goes on from its last checkpoint and ends with the bits of one that was not.
#include "data_files.h"
#include "program_runner.h"
#include "small_run.h"
#include <qat/schedulers/checkpoint.h>

#include <csignal>
#include <sstream>

#include "support/catch.h"
#include "support/run_state.h"

using namespace qat::apps;
using namespace qat::apps::testing;
using Catch::Matchers::Contains;
using Stage = RunState::Stage;

namespace {

namespace fs = std::filesystem;

/// Learned scales, batch normalization and random variation: everything that has state.
std::vector<std::string> run_of(const fs::path& out) {
  return small_run_with(out, {"--model", "cnn", "--quantizer", "lsq", "--optimizer", "adam", "--float-epochs",
                              "2", "--qat-epochs", "2", "--limit", "128", "--learning-rate", "0.01", "--set",
                              "augment=true", "--checkpoint-seconds", "0"});
}

const fs::path& whole_run() {
  static const TemporaryFolder folder;
  static const auto out = folder.path() / "whole";
  static const auto outcome = train(run_of(out));
  INFO(outcome.standard_error);
  REQUIRE(outcome.status == 0);
  return out;
}

std::optional<RunState> state_in(const fs::path& out) {
  const auto path = out / "checkpoints" / "resume.qat";
  if (!fs::exists(path)) return std::nullopt;
  return parse_run_state(qat::read_checkpoint_info(path.string()).entries.at("run_state"), path.string());
}

ProgramOutcome stopped(const std::vector<std::string>& run, const fs::path& out, int signal, Stage stage,
                       std::int64_t epoch, std::int64_t steps) {
  return stop_built_program("qat-train", run, signal, [&] {
    const auto state = state_in(out);
    return state && state->stage == stage && state->epoch == epoch && state->progress.steps >= steps;
  });
}
ProgramOutcome stopped(const fs::path& out, int signal, Stage stage, std::int64_t epoch, std::int64_t steps) {
  return stopped(run_of(out), out, signal, stage, epoch, steps);
}

/// The columns of metrics.csv that do not hold times.
std::string numbers_of(const fs::path& out) {
  std::istringstream lines(content(out / "metrics.csv"));
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream cells(line);
    std::string cell;
    for (int column = 0; std::getline(cells, cell, ','); ++column) {
      if (column != 6) result += cell + ",";
    }
    result += "\n";
  }
  return result;
}

void check_same_results(const fs::path& out, const fs::path& whole = whole_run()) {
  CHECK(summary(out)["digest"] == summary(whole)["digest"]);
  CHECK(summary(out)["float_accuracy"] == summary(whole)["float_accuracy"]);
  CHECK(summary(out)["deployed_accuracy"] == summary(whole)["deployed_accuracy"]);
  CHECK(numbers_of(out) == numbers_of(whole));
  CHECK(content(out / "layers.csv") == content(whole / "layers.csv"));
  CHECK_FALSE(fs::exists(out / "checkpoints" / "resume.qat"));
}

}  // namespace

TEST_CASE("A run that is killed goes on with --resume and ends with the same bits", "[apps]") {
  struct Place {
    Stage stage;
    std::int64_t epoch;
    std::int64_t steps;
  };
  const auto place =
      GENERATE(Place{Stage::kFloat, 0, 2}, Place{Stage::kFloat, 1, 0}, Place{Stage::kFloat, 1, 3},
               Place{Stage::kRecording, 0, 0}, Place{Stage::kQuantized, 0, 0}, Place{Stage::kQuantized, 0, 3},
               Place{Stage::kQuantized, 1, 1});
  CAPTURE(static_cast<int>(place.stage), place.epoch, place.steps);
  const TemporaryFolder folder;
  const auto out = folder.path() / "run";
  const auto killed = stopped(out, SIGKILL, place.stage, place.epoch, place.steps);
  REQUIRE(killed.status == 128 + SIGKILL);
  REQUIRE_FALSE(fs::exists(out / "summary.json"));
  const auto resumed = train({"--resume", "--out", out.string()});
  INFO(resumed.standard_error);
  REQUIRE(resumed.status == 0);
  CHECK_THAT(resumed.standard_error, Contains("resumed from"));
  check_same_results(out);
}

TEST_CASE("So does a run with momentum, BatchNorm that goes on normalising and widths within budgets",
          "[apps]") {
  const TemporaryFolder folder;
  const auto run_to = [&](const fs::path& out) {
    return small_run_with(out, {"--model", "cnn", "--quantizer", "fp_d_xmax", "--bn-folding", "off",
                                "--limit", "128", "--learning-rate", "0.01", "--weight-budget-kb", "50",
                                "--activation-budget-kb", "30", "--checkpoint-seconds", "0"});
  };
  const auto whole = folder.path() / "whole";
  REQUIRE(train(run_to(whole)).status == 0);
  const auto out = folder.path() / "run";
  REQUIRE(stopped(run_to(out), out, SIGKILL, Stage::kQuantized, 0, 2).status == 128 + SIGKILL);
  REQUIRE(train({"--resume", "--out", out.string()}).status == 0);
  check_same_results(out, whole);
}

TEST_CASE("A run that is killed twice goes on twice", "[apps]") {
  const TemporaryFolder folder;
  const auto out = folder.path() / "run";
  REQUIRE(stopped(out, SIGKILL, Stage::kFloat, 1, 1).status == 128 + SIGKILL);
  const auto again = stop_built_program(
      "qat-train", {"--resume", "--out", out.string(), "--checkpoint-seconds", "0"}, SIGKILL, [&] {
        const auto state = state_in(out);
        return state && state->stage == Stage::kQuantized && state->progress.steps >= 2;
      });
  REQUIRE(again.status == 128 + SIGKILL);
  REQUIRE(train({"--resume", "--out", out.string()}).status == 0);
  check_same_results(out);
}

TEST_CASE("SIGINT and SIGTERM end a run behind a step, with its state saved and the command to go on",
          "[apps]") {
  const int signal = GENERATE(SIGINT, SIGTERM);
  const TemporaryFolder folder;
  const auto out = folder.path() / "run";
  const auto outcome = stopped(out, signal, Stage::kQuantized, 0, 1);
  CHECK(outcome.status == 1);
  CHECK_THAT(outcome.standard_error,
             Contains("stopped by a signal") && Contains("--resume --out " + out.string()));
  REQUIRE(train({"--resume", "--out", out.string()}).status == 0);
  check_same_results(out);
}

TEST_CASE("--resume refuses another configuration and starts afresh without a stopped run", "[apps]") {
  const TemporaryFolder folder;
  const auto out = folder.path() / "run";
  REQUIRE(stopped(out, SIGKILL, Stage::kFloat, 0, 1).status == 128 + SIGKILL);
  const auto before = content(out / "checkpoints" / "resume.qat");
  const auto refused = train({"--resume", "--out", out.string(), "--weight-bits", "4"});
  CHECK(refused.status == 2);
  CHECK_THAT(refused.standard_error, Contains("--weight-bits was 8, is 4"));
  CHECK(content(out / "checkpoints" / "resume.qat") == before);

  const auto fresh = folder.path() / "fresh";
  auto arguments = run_of(fresh);
  arguments.push_back("--resume");
  REQUIRE(train(arguments).status == 0);
  check_same_results(fresh);
  const auto finished = train({"--resume", "--out", fresh.string()});
  CHECK(finished.status == 0);
  CHECK_THAT(finished.standard_output, Contains("nothing to resume"));
  CHECK(train({"--out", fresh.string(), "--checkpoint-seconds", "-1"}).status == 2);
}

TEST_CASE("A damaged checkpoint of a stopped run is refused and stays", "[apps]") {
  const TemporaryFolder folder;
  const auto out = folder.path() / "run";
  REQUIRE(stopped(out, SIGKILL, Stage::kFloat, 0, 1).status == 128 + SIGKILL);
  const auto path = out / "checkpoints" / "resume.qat";
  fs::resize_file(path, fs::file_size(path) / 2);
  const auto outcome = train({"--resume", "--out", out.string()});
  CHECK(outcome.status == 1);
  CHECK_THAT(outcome.standard_error, Contains("resume.qat") && Contains("cut or damaged"));
  CHECK(fs::exists(path));
}
