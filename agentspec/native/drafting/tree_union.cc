#include "drafting/tree_union.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "errors.h"

namespace agentspec {
namespace {

// A row while it is built; node 0 is the root.
struct Tree {
  std::vector<Token> tokens;
  std::vector<std::int32_t> parents;
  std::vector<double> estimates;
  std::vector<std::uint8_t> sources;

  [[nodiscard]] std::size_t size() const { return tokens.size(); }

  void clear() {
    tokens.clear();
    parents.clear();
    estimates.clear();
    sources.clear();
  }

  void leave_root() {
    tokens.resize(1);
    parents.resize(1);
    estimates.resize(1);
    sources.resize(1);
  }

  void add(Token token, std::int32_t parent, double estimate, std::uint8_t source) {
    tokens.push_back(token);
    parents.push_back(parent);
    estimates.push_back(estimate);
    sources.push_back(source);
  }

  // The sum over all nodes, the root included.
  [[nodiscard]] double promised() const { return std::accumulate(estimates.begin(), estimates.end(), 0.0); }
};

// A node's probability under its parent, from estimates that are products from the root.
double under_parent(double estimate, double parent) {
  return parent > 0.0 ? std::min(1.0, estimate / parent) : 0.0;
}

// Builds the trees of the rows one after another, in memory that they share.
class RowBuilder {
 public:
  RowBuilder(const SuffixTrees& suffix, const ModelTrees& model, const UnionConfig& config)
      : suffix_(suffix), model_(model), config_(config) {}

  void read_suffix(std::size_t row, std::size_t max_nodes) {
    const auto first = static_cast<std::size_t>(suffix_.offsets[row]);
    const std::size_t size = static_cast<std::size_t>(suffix_.offsets[row + 1]) - first;
    own_.clear();
    for (std::size_t node = 0; node < std::min(size, max_nodes + 1); ++node) {
      const std::int32_t parent = suffix_.parents[first + node];
      if (node == 0 ? parent != -1 : parent < 0 || static_cast<std::size_t>(parent) >= node) {
        throw ConfigError("row " + std::to_string(row) +
                          ": the root's parent must be -1 and every other an earlier node, got " +
                          std::to_string(parent) + " for node " + std::to_string(node));
      }
      own_.add(suffix_.tokens[first + node], parent, suffix_.estimates[first + node],
               suffix_.sources[first + node]);
    }
  }

  // Call this after read_suffix(): it uses the root that read_suffix() has read.
  void build_model(std::size_t row, std::size_t max_nodes) {
    const auto numbers = model_.chosen.subspan(row * model_.num_chosen, model_.num_chosen);
    const auto tokens = model_.tokens.subspan(row * model_.num_chosen, model_.num_chosen);
    const auto given = model_.estimates.subspan(row * model_.num_chosen, model_.num_chosen);
    drafted_.clear();
    drafted_.add(own_.tokens[0], -1, 1.0, 0);
    order_.clear();
    likely_.clear();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      check_candidate(row, i, numbers, tokens[i]);
      likely_.push_back(std::min(static_cast<double>(given[i]), 1.0));
      // Written so that an estimate that is NaN is left out too.
      if (given[i] >= config_.min_estimate) order_.push_back(i);
    }
    // A parent comes first: its number is smaller than its children's and its estimate is not smaller.
    std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      return likely_[a] != likely_[b] ? likely_[a] > likely_[b] : a < b;
    });
    places_.assign(numbers.size(), -1);
    for (const std::size_t i : order_) {
      if (drafted_.size() > max_nodes) break;
      const std::int32_t parent = place_of_parent(row, numbers[i], numbers);
      // -1: rounding has put a child before its parent.
      if (parent < 0) continue;
      const auto place = static_cast<std::int32_t>(drafted_.size());
      if (!config_.trees && parent != place - 1) continue;
      places_[i] = place;
      drafted_.add(static_cast<Token>(tokens[i]), parent, likely_[i], kModelSource);
    }
  }

  // The tree to verify for a row that wants the model's tree.
  const Tree& choose(std::size_t max_nodes) {
    scaled_ = drafted_;
    for (std::size_t node = 1; node < scaled_.size(); ++node) {
      scaled_.estimates[node] = std::min(config_.factor * scaled_.estimates[node], 1.0);
    }
    if (config_.rule == UnionRule::kInterleave) {
      alone_ = false;
      if (!config_.trees) keep_better();
      interleave(max_nodes);
      return merged_;
    }
    verified_ = alone_ = true;
    if (config_.rule == UnionRule::kModelOnly || own_.size() == 1) return scaled_;
    alone_ = false;
    // The draft model ran and proposed nothing. That is a result too.
    if (scaled_.size() == 1) return own_;
    if (config_.rule == UnionRule::kMerge) {
      merge(max_nodes);
      return merged_;
    }
    if (config_.rule == UnionRule::kModel || scaled_.promised() > own_.promised()) {
      alone_ = true;
      return scaled_;
    }
    verified_ = false;
    return own_;
  }

  [[nodiscard]] const Tree& drafted() const { return drafted_; }
  [[nodiscard]] bool verified() const { return verified_; }
  [[nodiscard]] bool alone() const { return alone_; }

 private:
  static void check_candidate(std::size_t row, std::size_t i, std::span<const std::int64_t> numbers,
                              std::int64_t token) {
    const std::int64_t previous = i == 0 ? -1 : numbers[i - 1];
    if (numbers[i] <= previous) {
      throw ConfigError("row " + std::to_string(row) +
                        ": numbers of candidates must be >= 0 and ascending, got " +
                        std::to_string(numbers[i]) + " behind " + std::to_string(previous));
    }
    if (token < 0 || token > std::numeric_limits<Token>::max()) {
      throw ConfigError("row " + std::to_string(row) +
                        ": tokens of a draft model must be in [0, 2^31), got " + std::to_string(token) +
                        "; check its vocabulary");
    }
  }

  // The node of the candidate's parent; -1 if the parent is not in the tree.
  [[nodiscard]] std::int32_t place_of_parent(std::size_t row, std::int64_t number,
                                             std::span<const std::int64_t> numbers) const {
    const auto group = static_cast<std::size_t>(number / model_.topk);
    if (group == 0) return 0;
    if (group >= model_.num_groups) {
      throw ConfigError("row " + std::to_string(row) + ": candidates must be of one of " +
                        std::to_string(model_.num_groups) + " groups of " + std::to_string(model_.topk) +
                        ", got candidate " + std::to_string(number) +
                        "; pass the topk that the drafting loop ran with");
    }
    const std::int64_t parent = model_.parents[row * model_.num_groups + group];
    if (parent == -1) return 0;
    const auto found = std::lower_bound(numbers.begin(), numbers.end(), parent);
    if (found == numbers.end() || *found != parent) return -1;
    return places_[static_cast<std::size_t>(found - numbers.begin())];
  }

  void merge(std::size_t max_nodes) {
    const std::size_t size = own_.size();
    all_ = own_;
    std::vector<double>& chances = all_.estimates;
    promised_.assign(size + scaled_.size(), 0.0);
    first_child_.assign(size + scaled_.size(), -1);
    next_sibling_.assign(size + scaled_.size(), -1);

    // 1. The suffix tree. Its nodes keep their numbers.
    for (std::size_t node = 1; node < size; ++node) {
      const auto parent = static_cast<std::size_t>(own_.parents[node]);
      chances[node] = under_parent(own_.estimates[node], own_.estimates[parent]);
      promised_[parent] += chances[node];
      link(node, parent);
    }
    // 2. The model's nodes below the same parents. united_[i] is the number of the model's node i.
    united_.assign(scaled_.size(), 0);
    for (std::size_t i = 1; i < scaled_.size(); ++i) {
      const auto own_parent = static_cast<std::size_t>(scaled_.parents[i]);
      const double chance = under_parent(scaled_.estimates[i], scaled_.estimates[own_parent]);
      const std::size_t parent = united_[own_parent];
      std::int32_t place = first_child_[parent];
      while (place >= 0 && all_.tokens[static_cast<std::size_t>(place)] != scaled_.tokens[i]) {
        place = next_sibling_[static_cast<std::size_t>(place)];
      }
      if (place < 0) {
        united_[i] = all_.size();
        all_.add(scaled_.tokens[i], static_cast<std::int32_t>(parent), chance, kModelSource);
        promised_[parent] += chance;
        link(united_[i], parent);
        continue;
      }
      const std::size_t node = united_[i] = static_cast<std::size_t>(place);
      const double other = chances[node];
      if (chance > other) all_.sources[node] = kModelSource;
      const double confirmed = chance * (1.0 - other);
      chances[node] = other + confirmed;
      promised_[parent] += confirmed;
    }
    // 3. Products from the root. No child is likelier than its parent, and ties go to the earlier node, so
    // parents stay before their children.
    order_.clear();
    for (std::size_t node = 1; node < all_.size(); ++node) {
      const auto parent = static_cast<std::size_t>(all_.parents[node]);
      const double whole = promised_[parent];
      chances[node] *= whole > 1.0 ? chances[parent] / whole : chances[parent];
      if (chances[node] >= config_.min_estimate) order_.push_back(node);
    }
    const std::size_t kept = std::min(order_.size(), max_nodes);
    std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(kept), order_.end(),
                      [&](std::size_t a, std::size_t b) {
                        return chances[a] != chances[b] ? chances[a] > chances[b] : a < b;
                      });
    merged_.clear();
    merged_.add(all_.tokens[0], -1, 1.0, all_.sources[0]);
    numbers_.assign(all_.size(), 0);
    for (std::size_t i = 0; i < kept; ++i) {
      const std::size_t node = order_[i];
      numbers_[node] = static_cast<std::int32_t>(merged_.size());
      merged_.add(all_.tokens[node], numbers_[static_cast<std::size_t>(all_.parents[node])], chances[node],
                  all_.sources[node]);
    }
  }

  // The estimate of one of the draft model's nodes as a device scales it.
  [[nodiscard]] float scaled_on_device(std::size_t node) const {
    return std::min(static_cast<float>(config_.factor) * static_cast<float>(drafted_.estimates[node]), 1.0F);
  }

  // Leaves only the root of the chain that promises less.
  void keep_better() {
    float own = 0.0F;
    float model = 0.0F;
    for (std::size_t node = 1; node < own_.size(); ++node) own += static_cast<float>(own_.estimates[node]);
    for (std::size_t node = 1; node < scaled_.size(); ++node) model += scaled_on_device(node);
    (model > own ? own_ : scaled_).leave_root();
  }

  void interleave(std::size_t max_nodes) {
    merged_.clear();
    merged_.add(own_.tokens[0], -1, 1.0, own_.sources[0]);
    own_places_.assign(own_.size(), 0);
    united_.assign(scaled_.size(), 0);
    std::size_t own = 1;
    std::size_t model = 1;
    while ((own < own_.size() || model < scaled_.size()) && merged_.size() <= max_nodes) {
      float scaled = 0.0F;
      if (model < scaled_.size()) scaled = scaled_on_device(model);
      if (own == own_.size() ||
          (model < scaled_.size() && scaled > static_cast<float>(own_.estimates[own]))) {
        const std::size_t parent = united_[static_cast<std::size_t>(scaled_.parents[model])];
        united_[model] = taken(scaled_.tokens[model], parent, scaled, kModelSource);
        ++model;
      } else {
        const std::size_t parent = own_places_[static_cast<std::size_t>(own_.parents[own])];
        own_places_[own] = taken(own_.tokens[own], parent, own_.estimates[own], own_.sources[own]);
        ++own;
      }
    }
    verified_ = model > order_.size();
  }

  // The number of a node of the merged tree, to which it is added if it is not there.
  std::size_t taken(Token token, std::size_t parent, double estimate, std::uint8_t source) {
    for (std::size_t node = 1; node < merged_.size(); ++node) {
      if (static_cast<std::size_t>(merged_.parents[node]) == parent && merged_.tokens[node] == token) {
        return node;
      }
    }
    merged_.add(token, static_cast<std::int32_t>(parent), estimate, source);
    return merged_.size() - 1;
  }

  // Of siblings with the same token, a search finds the latest first.
  void link(std::size_t node, std::size_t parent) {
    next_sibling_[node] = first_child_[parent];
    first_child_[parent] = static_cast<std::int32_t>(node);
  }

  const SuffixTrees& suffix_;
  const ModelTrees& model_;
  const UnionConfig& config_;
  Tree own_, drafted_, scaled_, all_, merged_;
  bool verified_ = false;
  bool alone_ = false;
  std::vector<std::size_t> order_;
  std::vector<double> likely_;
  std::vector<std::int32_t> places_;
  // Scratch of merge().
  std::vector<double> promised_;
  std::vector<std::int32_t> first_child_, next_sibling_, numbers_;
  std::vector<std::size_t> united_;
  // Scratch of interleave(), with united_: the place of each node of a tree in the merged one.
  std::vector<std::size_t> own_places_;
};

void check_size(const char* name, std::size_t size, std::size_t required) {
  if (size == required) return;
  throw ConfigError(std::string(name) + " must have " + std::to_string(required) + " elements, got " +
                    std::to_string(size) + "; pass the arrays of one batch");
}

// Throws unless `offsets` divides `num_nodes` nodes into rows of at least `least` nodes. Returns the number
// of rows.
std::size_t check_offsets(std::span<const std::int32_t> offsets, std::size_t num_nodes, std::int32_t least) {
  bool fits =
      !offsets.empty() && offsets.front() == 0 && static_cast<std::size_t>(offsets.back()) == num_nodes;
  for (std::size_t row = 0; fits && row + 1 < offsets.size(); ++row) {
    fits = offsets[row + 1] - offsets[row] >= least;
  }
  if (!fits) {
    throw ConfigError("offsets must begin with 0, end with the number of nodes, " +
                      std::to_string(num_nodes) + ", and leave each row at least " + std::to_string(least) +
                      "; pass a batch as it was drafted");
  }
  return offsets.size() - 1;
}

void check(const SuffixTrees& suffix, const ModelTrees& model, std::span<const bool> wanted,
           std::span<const std::int32_t> rooms, const UnionConfig& config) {
  const std::size_t num_nodes = suffix.tokens.size();
  const std::size_t rows = check_offsets(suffix.offsets, num_nodes, 1);
  check_size("parents of the suffix drafts", suffix.parents.size(), num_nodes);
  check_size("estimates of the suffix drafts", suffix.estimates.size(), num_nodes);
  check_size("sources of the suffix drafts", suffix.sources.size(), num_nodes);
  check_size("match_lens of the suffix drafts", suffix.match_lens.size(), rows);
  check_size("the rows that want a model's tree", wanted.size(), rows);
  check_size("rooms", rooms.size(), rows);
  if (config.max_nodes < 1) {
    throw ConfigError("max_nodes must be >= 1, got " + std::to_string(config.max_nodes));
  }
  if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) return;
  if (model.topk < 1) throw ConfigError("topk must be >= 1, got " + std::to_string(model.topk));
  check_size("parents of the model's trees", model.parents.size(), rows * model.num_groups);
  check_size("candidates of the model's trees", model.chosen.size(), rows * model.num_chosen);
  check_size("tokens of the model's trees", model.tokens.size(), rows * model.num_chosen);
  check_size("estimates of the model's trees", model.estimates.size(), rows * model.num_chosen);
}

// Appends the suffix draft of a row, or only its root.
void append_suffix(const SuffixTrees& suffix, std::size_t row, bool root_only, TreeUnion& out) {
  const auto first = static_cast<std::size_t>(suffix.offsets[row]);
  const std::size_t size = root_only ? 1 : static_cast<std::size_t>(suffix.offsets[row + 1]) - first;
  const auto append = [&](auto& to, const auto& from) {
    const auto part = from.subspan(first, size);
    to.insert(to.end(), part.begin(), part.end());
  };
  append(out.tokens, suffix.tokens);
  append(out.parents, suffix.parents);
  append(out.estimates, suffix.estimates);
  append(out.sources, suffix.sources);
  double score = 0.0;
  for (const float estimate : suffix.estimates.subspan(first + 1, size - 1)) score += estimate;
  out.match_lens.push_back(root_only ? 0 : suffix.match_lens[row]);
  out.scores.push_back(static_cast<float>(score));
}

void append_tree(const Tree& tree, std::int32_t match_len, TreeUnion& out) {
  out.tokens.insert(out.tokens.end(), tree.tokens.begin(), tree.tokens.end());
  out.parents.insert(out.parents.end(), tree.parents.begin(), tree.parents.end());
  for (const double estimate : tree.estimates) out.estimates.push_back(static_cast<float>(estimate));
  out.sources.insert(out.sources.end(), tree.sources.begin(), tree.sources.end());
  const bool from_suffix = std::any_of(tree.sources.begin(), tree.sources.end(), [](std::uint8_t source) {
    return source > 0 && source < kModelSource;
  });
  out.match_lens.push_back(from_suffix ? match_len : 0);
  out.scores.push_back(
      static_cast<float>(std::accumulate(tree.estimates.begin() + 1, tree.estimates.end(), 0.0)));
}

void append_model(const Tree& tree, TreeUnion& out) {
  out.model_tokens.insert(out.model_tokens.end(), tree.tokens.begin(), tree.tokens.end());
  out.model_parents.insert(out.model_parents.end(), tree.parents.begin(), tree.parents.end());
  for (const double estimate : tree.estimates) out.model_estimates.push_back(static_cast<float>(estimate));
}

}  // namespace

TreeUnion unite(const SuffixTrees& suffix, const ModelTrees& model, std::span<const bool> wanted,
                std::span<const std::int32_t> rooms, const UnionConfig& config) {
  check(suffix, model, wanted, rooms, config);
  const std::size_t rows = wanted.size();
  TreeUnion out;
  out.offsets.reserve(rows + 1);
  out.model_offsets.reserve(rows + 1);
  out.offsets.push_back(0);
  out.model_offsets.push_back(0);
  out.verified.assign(rows, 0);
  out.alone.assign(rows, 0);
  RowBuilder builder(suffix, model, config);
  for (std::size_t row = 0; row < rows; ++row) {
    if (wanted[row]) {
      const auto max_nodes = static_cast<std::size_t>(std::clamp(rooms[row], 0, config.max_nodes));
      builder.read_suffix(row, max_nodes);
      builder.build_model(row, max_nodes);
      append_tree(builder.choose(max_nodes), suffix.match_lens[row], out);
      append_model(builder.drafted(), out);
      out.verified[row] = builder.verified() ? 1 : 0;
      out.alone[row] = builder.alone() ? 1 : 0;
    } else {
      append_suffix(suffix, row, config.rule == UnionRule::kModelOnly, out);
    }
    out.offsets.push_back(static_cast<std::int32_t>(out.tokens.size()));
    out.model_offsets.push_back(static_cast<std::int32_t>(out.model_tokens.size()));
  }
  return out;
}

FollowedPath follow_path(std::span<const Token> tokens, std::span<const std::int32_t> parents,
                         std::span<const float> estimates, std::span<const std::int64_t> text) {
  FollowedPath found;
  std::size_t end = 0;
  // Children follow their parents, so one pass finds the whole path, and another one all that is below it.
  for (std::size_t node = 1; node < tokens.size() && found.length < text.size(); ++node) {
    if (std::cmp_not_equal(parents[node], end) || tokens[node] != text[found.length]) continue;
    end = node;
    ++found.length;
  }
  std::vector<bool> below(tokens.size(), false);
  double sum = 0.0;
  for (std::size_t node = end + 1; node < tokens.size(); ++node) {
    const auto parent = static_cast<std::size_t>(parents[node]);
    below[node] = parent == end || (parent < node && below[parent]);
    if (below[node]) sum += static_cast<double>(estimates[node]);
  }
  const double reached = end == 0 ? 1.0 : static_cast<double>(estimates[end]);
  found.beyond = reached > 0.0 ? sum / reached : 0.0;
  return found;
}

FollowedPaths follow_paths(std::span<const std::int32_t> offsets, std::span<const Token> tokens,
                           std::span<const std::int32_t> parents, std::span<const float> estimates,
                           std::span<const std::int64_t> texts, std::size_t width,
                           std::span<const std::int32_t> lengths) {
  const std::size_t rows = check_offsets(offsets, tokens.size(), 0);
  check_size("parents of the model's trees", parents.size(), tokens.size());
  check_size("estimates of the model's trees", estimates.size(), tokens.size());
  check_size("accepted tokens", texts.size(), rows * width);
  check_size("lengths of the accepted tokens", lengths.size(), rows);
  FollowedPaths result{std::vector<std::int32_t>(rows, 0), std::vector<double>(rows, 0.0)};
  for (std::size_t row = 0; row < rows; ++row) {
    const auto first = static_cast<std::size_t>(offsets[row]);
    const std::size_t size = static_cast<std::size_t>(offsets[row + 1]) - first;
    if (lengths[row] < 0 || static_cast<std::size_t>(lengths[row]) > width) {
      throw ConfigError("row " + std::to_string(row) + " must have at most " + std::to_string(width) +
                        " accepted tokens, got " + std::to_string(lengths[row]));
    }
    const auto text = texts.subspan(row * width, static_cast<std::size_t>(lengths[row]));
    if (size == 0) continue;
    const FollowedPath found = follow_path(tokens.subspan(first, size), parents.subspan(first, size),
                                           estimates.subspan(first, size), text);
    result.lengths[row] = static_cast<std::int32_t>(found.length);
    result.beyond[row] = found.beyond;
  }
  return result;
}

}  // namespace agentspec
