#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "llama.h"
#include "worker.h"

namespace agentspec {

// A model that shares out the rows of a batch over threads: each has a copy of it and a part of the rows.
// One batch at a time.
class LlamaParts {
 public:
  // `num_threads`: the caller's included.
  LlamaParts(Llama model, std::size_t num_threads);

  [[nodiscard]] const LlamaShape& shape() const { return models_.front().shape(); }
  // The caller's, for what is not shared out.
  [[nodiscard]] Llama& first() { return models_.front(); }
  [[nodiscard]] bool is_head() const { return models_.front().is_head(); }

  // Where the parts of so many rows begin, and where the last one ends. Each has a row at least.
  [[nodiscard]] std::vector<std::size_t> split(std::size_t num_rows) const;

  // Calls work(model, part) once for each of so many parts, each with a model of its own. Throws what one of
  // them has thrown, when all have ended.
  void run(std::size_t num_parts, const std::function<void(Llama&, std::size_t)>& work);

 private:
  std::vector<Llama> models_;
  RowPool pool_;
};

}  // namespace agentspec
