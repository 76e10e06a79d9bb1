#include <iostream>

#include "support/command_line.h"
#include "support/program.h"
#include "support/trainer.h"
#include "support/training_run.h"

int main(int argc, char** argv) {
  using namespace qat::apps;
  keep_freed_memory();
  stop_on_signals();
  return run_program(argc, argv, [](const std::vector<std::string>& arguments) {
    const auto parsed = parse_train_command(arguments);
    if (!parsed.command) {
      std::cout << parsed.text;
      return 0;
    }
    const auto& [config, out, options] = *parsed.command;
    if (options.resume && is_finished(out)) {
      std::cout << out.string() << " holds a run that came to its end: nothing to resume\n";
      return 0;
    }
    configured_device(config.device);  // refuse before anything is read or written
    auto progress = Progress::standard_error();
    const auto dataset = load_configured_dataset(config);
    const auto result = run_training(config, dataset, out, progress, options);
    std::cout << result_table(result) << "results in " << out.string()
              << ": report.html, summary.json, model.qat, model.torchscript.pt\n";
    return 0;
  });
}
