#pragma once

#include <cstdint>

namespace agentspec {

using Token = std::int32_t;

// What stands between two texts in one index. It ends the text before it, and no draft has it.
inline constexpr Token kEnd = -1;

}  // namespace agentspec
