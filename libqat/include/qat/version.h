#pragma once

namespace qat {

/// The toolkit's version, "major.minor.patch"; written into checkpoints and exported files.
const char* version();

}  // namespace qat
