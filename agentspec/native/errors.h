#pragma once

#include <stdexcept>

namespace agentspec {

// The bindings turn each of these into the class of the same name in agentspec/errors.py.

struct TokenError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct ConfigError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct DuplicateRequestError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct UnknownRequestError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// The bytes are not a segment, or not one that can be used here.
struct SegmentError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A structure's invariant does not hold. This is a defect in agentspec, never an error of the caller.
struct IntegrityError : std::logic_error {
  using std::logic_error::logic_error;
};

}  // namespace agentspec
