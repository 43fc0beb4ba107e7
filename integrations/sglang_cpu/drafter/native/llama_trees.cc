#include "llama_trees.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "errors.h"
#include "float_kernels.h"

namespace agentspec {
namespace {

// A path that is gone on with: its last token has been drafted, not read.
struct Branch {
  std::int64_t token;
  float score;
  std::vector<std::uint32_t> grown;  // what was read of it
  std::span<const float> state;      // the drafter's behind what was read
};

// The indices of the `count` largest, the largest first; of equals the first.
void largest(std::span<const float> values, std::size_t count, std::vector<std::size_t>& found) {
  found.clear();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (found.size() == count && (count == 0 || values[i] <= values[found.back()])) continue;
    if (found.size() == count) found.pop_back();
    const auto place =
        std::ranges::find_if(found, [&](std::size_t other) { return values[other] < values[i]; });
    found.insert(place, i);
  }
}

// Of a part of the rows: what its passes read and find. Its thread alone has it while a pass runs.
struct Part {
  std::size_t first;
  std::size_t end;
  std::optional<AcceptanceHead> acceptance;
  std::vector<ReadToken> read;
  std::vector<float> hidden, normed, state, logits, topk_p;
  std::vector<std::int64_t> topk_index;
  std::vector<std::size_t> all, best;
};

class Drafting {
 public:
  Drafting(LlamaParts& models, std::span<const LayerCache> caches, const TreeRoots& roots,
           const AcceptanceHead* acceptance, std::span<const std::int64_t> token_of, const TreeRules& rules)
      : models_(models), caches_(caches), roots_(roots), token_of_(token_of), rules_(rules) {
    const std::size_t rows = roots.texts.size();
    const LlamaShape& shape = models.shape();
    const bool has_states = models.is_head() || (acceptance != nullptr && !roots.hidden.empty());
    if (rows == 0 || rules.topk == 0 || rules.num_steps == 0 || rules.topk > shape.outputs ||
        roots.topk_p.size() != rows * rules.topk || roots.topk_index.size() != rows * rules.topk ||
        roots.hidden.size() != (has_states ? rows * shape.hidden : 0) ||
        (!token_of.empty() && token_of.size() != shape.outputs)) {
      throw ConfigError(
          "trees need rows, topk tokens of each, the states that are read, and the target's tokens");
    }
    scores_.resize(rows);
    tokens_.resize(rows);
    groups_.resize(rows);
    branches_.resize(rows);
    const std::vector<std::size_t> starts = models.split(rows);
    parts_.resize(starts.size() - 1);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].first = starts[i];
      parts_[i].end = starts[i + 1];
      if (acceptance != nullptr) parts_[i].acceptance = *acceptance;
    }
  }

  DraftedTrees run() {
    begin();
    for (std::size_t step = 0; step + 1 < rules_.num_steps && !is_over(step + 1); ++step) {
      models_.run(parts_.size(), [&](Llama& model, std::size_t part) { pass(model, parts_[part], step); });
      ++num_passes_;
      if (step + 2 == rules_.num_steps) break;
      go_on(step);
    }
    return trees();
  }

 private:
  // The candidates behind the root, each of which is a branch.
  void begin() {
    const std::size_t h = models_.shape().hidden;
    std::vector<float> topk_p(roots_.topk_p.begin(), roots_.topk_p.end());
    if (!roots_.hidden.empty()) to_acceptance(parts_.front(), topk_p, roots_.hidden);
    for (std::size_t row = 0; row < branches_.size(); ++row) {
      groups_[row].push_back(-1);
      for (std::size_t i = 0; i < rules_.topk; ++i) {
        const std::int64_t token = target_token(roots_.topk_index[row * rules_.topk + i]);
        const float score = topk_p[row * rules_.topk + i];
        scores_[row].push_back(score);
        tokens_[row].push_back(token);
        groups_[row].push_back(static_cast<std::int64_t>(i));
        branches_[row].push_back(
            {token, score, {}, roots_.hidden.empty() ? roots_.hidden : roots_.hidden.subspan(row * h, h)});
      }
    }
    num_passes_ = 1;
  }

  [[nodiscard]] bool is_over(std::size_t num_tokens) const {
    double promised = 0.0;
    for (const std::vector<Branch>& branches : branches_) {
      double best = 0.0;
      for (const Branch& branch : branches) best = std::max(best, static_cast<double>(branch.score));
      best = std::min(best, 1.0);
      promised += std::pow(best, 1.0 + 1.0 / static_cast<double>(num_tokens));
    }
    return promised < rules_.least_gain;
  }

  // Reads the last tokens of a part's branches; topk candidates behind each.
  void pass(Llama& model, Part& part, std::size_t step) {
    if (step == 0) model.clear_grown();
    const std::size_t h = model.shape().hidden;
    const std::size_t k = rules_.topk;
    part.read.clear();
    part.hidden.clear();
    std::uint32_t number = static_cast<std::uint32_t>(step * k * (part.end - part.first));
    for (std::size_t row = part.first; row < part.end; ++row) {
      const std::span<const std::int32_t> text = roots_.texts[row];
      for (Branch& branch : branches_[row]) {
        branch.grown.push_back(number++);
        part.read.push_back(
            {branch.token, static_cast<std::int64_t>(text.size() + step), text, branch.grown, -1});
        if (model.is_head()) part.hidden.insert(part.hidden.end(), branch.state.begin(), branch.state.end());
      }
    }
    const std::size_t n = part.read.size();
    part.all.resize(n);
    std::iota(part.all.begin(), part.all.end(), std::size_t{0});
    model.read(part.read, part.hidden, caches_, part.all, part.normed, part.state);
    model.logits(part.normed, n, part.logits);
    const std::size_t outputs = model.shape().outputs;
    part.topk_p.clear();
    part.topk_index.clear();
    for (std::size_t i = 0; i < n; ++i) {
      const std::span<float> p = std::span(part.logits).subspan(i * outputs, outputs);
      float_kernels().softmax(p.data(), outputs);
      largest(p, k, part.best);
      for (const std::size_t index : part.best) {
        part.topk_p.push_back(p[index]);
        part.topk_index.push_back(static_cast<std::int64_t>(index));
      }
    }
    to_acceptance(part, part.topk_p, part.state);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t row = part.first + i / k;
      Branch& branch = branches_[row][i % k];
      for (std::size_t j = i * k; j < (i + 1) * k; ++j) {
        scores_[row].push_back(branch.score * part.topk_p[j]);
        tokens_[row].push_back(target_token(part.topk_index[j]));
      }
      if (model.is_head()) branch.state = std::span<const float>(part.state).subspan(i * h, h);
    }
  }

  // The drafter's probabilities become those of being accepted. [n, topk], the likeliest first, of [n,
  // hidden].
  void to_acceptance(Part& part, std::vector<float>& topk_p, std::span<const float> states) const {
    if (!part.acceptance) return;
    const std::size_t k = rules_.topk;
    const std::span<const float> estimates = part.acceptance->estimate(states, topk_p.size() / k);
    for (std::size_t i = 0; i < estimates.size(); ++i) {
      const std::span<float> p = std::span(topk_p).subspan(i * k, k);
      const float factor = estimates[i] / std::max(p[0], 1e-9F);
      for (float& value : p) value *= factor;
    }
  }

  // The best candidates of the last pass are the next branches.
  void go_on(std::size_t step) {
    const std::size_t k = rules_.topk;
    const std::size_t first = k + k * k * step;
    for (std::size_t row = 0; row < branches_.size(); ++row) {
      largest(std::span<const float>(scores_[row]).subspan(first, k * k), k, best_);
      std::vector<Branch> next;
      for (const std::size_t i : best_) {
        const Branch& parent = branches_[row][i / k];
        next.push_back({tokens_[row][first + i], scores_[row][first + i], parent.grown, parent.state});
        groups_[row].push_back(static_cast<std::int64_t>(first + i));
      }
      branches_[row] = std::move(next);
    }
  }

  DraftedTrees trees() {
    DraftedTrees drafted;
    drafted.num_rows = branches_.size();
    drafted.num_passes = num_passes_;
    for (std::size_t row = 0; row < branches_.size(); ++row) {
      if (num_passes_ > 1)
        drafted.parents.insert(drafted.parents.end(), groups_[row].begin(), groups_[row].end());
      largest(scores_[row], rules_.max_nodes, best_);
      std::ranges::sort(best_);
      for (const std::size_t i : best_) {
        drafted.chosen.push_back(static_cast<std::int64_t>(i));
        drafted.tokens.push_back(tokens_[row][i]);
        drafted.estimates.push_back(scores_[row][i]);
      }
    }
    return drafted;
  }

  [[nodiscard]] std::int64_t target_token(std::int64_t index) const {
    if (index < 0 || static_cast<std::size_t>(index) >= models_.shape().outputs) {
      throw ConfigError("tokens behind a root must be of the drafter's vocabulary");
    }
    return token_of_.empty() ? index : token_of_[static_cast<std::size_t>(index)];
  }

  LlamaParts& models_;
  std::span<const LayerCache> caches_;
  const TreeRoots& roots_;
  std::span<const std::int64_t> token_of_;
  const TreeRules& rules_;
  std::size_t num_passes_ = 0;
  std::vector<Part> parts_;
  // Of each row.
  std::vector<std::vector<float>> scores_;
  std::vector<std::vector<std::int64_t>> tokens_, groups_;
  std::vector<std::vector<Branch>> branches_;
  std::vector<std::size_t> best_;
};

}  // namespace

DraftedTrees draft_trees(LlamaParts& models, std::span<const LayerCache> caches, const TreeRoots& roots,
                         const AcceptanceHead* acceptance, std::span<const std::int64_t> token_of,
                         const TreeRules& rules) {
  return Drafting(models, caches, roots, acceptance, token_of, rules).run();
}

}  // namespace agentspec
