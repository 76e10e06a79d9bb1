#include <qat/version.h>

#include <string>

#include "support/catch.h"

TEST_CASE("version is three numbers") {
  CHECK_THAT(qat::version(), Catch::Matchers::Matches("[0-9]+\\.[0-9]+\\.[0-9]+"));
}
