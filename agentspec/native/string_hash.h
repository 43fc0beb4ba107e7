#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

namespace agentspec {

// Lets maps with string keys be searched by a string_view without a copy.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

}  // namespace agentspec
