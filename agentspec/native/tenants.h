#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "drafting/estimator.h"
#include "string_hash.h"

namespace agentspec {

// What the engine knows of a namespace besides its texts.
struct Tenant {
  std::string_view name;
  // What an index had before a deletion that its request's own text has not must not be drafted from after
  // it.
  std::uint64_t num_erasures = 0;
  std::unique_ptr<Estimator> estimator;  // null while nothing was learnt
  std::list<Tenant*>::iterator place;    // among those that learn, if it has an estimator
};

// The namespaces that have requests or have learnt something. Each learns for itself, so that nothing a
// namespace does can be seen in the drafts of another; at most kMaxLearning do, and one more takes the place
// of the one that has not learnt for the longest time.
//
// The owner guards all by one lock; only under it are tenants given and let go of.
class Tenants {
 public:
  static constexpr std::size_t kMaxLearning = 1024;

  Tenants(std::span<const float> weights, float rate) : initial_(weights, rate) {}

  // A tenant stays as long as anyone else holds it.
  [[nodiscard]] std::shared_ptr<Tenant> enter(const std::string& name);
  // Lets go of a tenant that enter() gave.
  void leave(std::shared_ptr<Tenant> tenant);

  // What to estimate with; `tenant` may be null.
  [[nodiscard]] const Estimator& estimator(const Tenant* tenant) const;
  [[nodiscard]] const Estimator& estimator(std::string_view name) const;
  // What to learn with. Throws std::bad_alloc, the tenant's estimates being as before.
  [[nodiscard]] Estimator& learner(Tenant& tenant);
  [[nodiscard]] std::size_t num_learning() const { return learning_.size(); }

  void count_erasure(std::string_view name);
  void count_erasure_everywhere();
  // Estimates start anew.
  void forget(std::string_view name);
  void forget_all();

 private:
  using Map = std::unordered_map<std::string, std::shared_ptr<Tenant>, StringHash, std::equal_to<>>;

  void drop_if_idle(std::string_view name);

  const Estimator initial_;
  Map tenants_;
  std::list<Tenant*> learning_;  // the last to have learnt first
};

}  // namespace agentspec
