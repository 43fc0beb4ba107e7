#include "tenants.h"

#include <utility>

namespace agentspec {

std::shared_ptr<Tenant> Tenants::enter(const std::string& name) {
  const auto found = tenants_.find(name);
  if (found != tenants_.end()) return found->second;
  const auto added = tenants_.emplace(name, std::make_shared<Tenant>()).first;
  added->second->name = added->first;
  return added->second;
}

void Tenants::leave(std::shared_ptr<Tenant> tenant) {
  const std::string_view name = tenant->name;
  tenant.reset();
  drop_if_idle(name);
}

// `name` may refer to the tenant's own name.
void Tenants::drop_if_idle(std::string_view name) {
  const auto found = tenants_.find(name);
  if (found == tenants_.end() || found->second->estimator || found->second.use_count() > 1) return;
  tenants_.erase(found);
}

const Estimator& Tenants::estimator(const Tenant* tenant) const {
  return tenant != nullptr && tenant->estimator ? *tenant->estimator : initial_;
}

const Estimator& Tenants::estimator(std::string_view name) const {
  const auto found = tenants_.find(name);
  return estimator(found == tenants_.end() ? nullptr : found->second.get());
}

Estimator& Tenants::learner(Tenant& tenant) {
  if (tenant.estimator) {
    learning_.splice(learning_.begin(), learning_, tenant.place);
    return *tenant.estimator;
  }
  if (learning_.size() < kMaxLearning) {
    auto made = std::make_unique<Estimator>(initial_);
    learning_.push_front(&tenant);
    tenant.estimator = std::move(made);
  } else {
    Tenant& replaced = *learning_.back();
    tenant.estimator = std::move(replaced.estimator);
    *tenant.estimator = initial_;
    learning_.splice(learning_.begin(), learning_, replaced.place);
    learning_.front() = &tenant;
    drop_if_idle(replaced.name);
  }
  tenant.place = learning_.begin();
  return *tenant.estimator;
}

void Tenants::count_erasure(std::string_view name) {
  const auto found = tenants_.find(name);
  if (found != tenants_.end()) ++found->second->num_erasures;
}

void Tenants::count_erasure_everywhere() {
  for (const auto& [name, tenant] : tenants_) ++tenant->num_erasures;
}

void Tenants::forget(std::string_view name) {
  const auto found = tenants_.find(name);
  if (found == tenants_.end() || !found->second->estimator) return;
  learning_.erase(found->second->place);
  found->second->estimator.reset();
  drop_if_idle(name);
}

void Tenants::forget_all() {
  while (!learning_.empty()) forget(learning_.back()->name);
}

}  // namespace agentspec
