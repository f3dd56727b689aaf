// SPDX-License-Identifier: Apache-2.0
// What checks ask of a record: its GPUs with their place on the bus, and what surrounds them.
#pragma once

#include "doctor/record.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tool {

enum class gpu_vendor : std::uint8_t { nvidia, amd, intel };
[[nodiscard]] std::string_view to_string(gpu_vendor vendor);

/// How a PCI device is joined to what is above it; empty where the system does not say.
struct bus_link {
  std::optional<int> lanes, most_lanes;
  std::optional<double> rate, most_rate;  // of a lane, in GT/s
};

struct gpu_facts {
  std::string address;  // "0000:1b:00.0"
  gpu_vendor vendor = gpu_vendor::nvidia;
  std::string name;  // empty where no driver tells
  std::string driver;
  bool is_on_bus = false;            // the system lists it
  std::vector<std::string> bridges;  // from the root port down
  bus_link link;
  std::optional<int> numa_node;
  std::optional<std::int64_t> memory, window;  // bytes of it, and of what the bus shows of it
  const json* nvml = nullptr;                  // what the management library tells; never null, but JSON's null
  const json* amd = nullptr;                   // what AMD's driver tells; the same

  /// The model, or at least the vendor.
  [[nodiscard]] std::string model() const { return name.empty() ? std::string{to_string(vendor)} : name; }
};

/// Thread: any.
class machine_facts {
 public:
  explicit machine_facts(const system_record& record);

  [[nodiscard]] const system_record& record() const { return record_; }
  [[nodiscard]] const std::vector<gpu_facts>& gpus() const { return gpus_; }
  [[nodiscard]] const gpu_facts* gpu_at(const std::string& address) const;
  [[nodiscard]] bool has(gpu_vendor vendor) const;
  /// NVIDIA's switches for NVLink.
  [[nodiscard]] const std::vector<std::string>& switches() const { return switches_; }
  /// Network adapters for remote memory access.
  [[nodiscard]] const std::vector<std::string>& rdma_adapters() const { return rdma_adapters_; }
  [[nodiscard]] bus_link link_of(const std::string& address) const;

  /// "4 x NVIDIA A10, driver 550.54.15".
  [[nodiscard]] std::string title() const;
  /// GPUs that the environment lets programs see, as far as that can be told; all of them where nothing hides any.
  [[nodiscard]] std::vector<const gpu_facts*> visible() const;
  /// False where the driver says of every pair that it can be no peers.
  [[nodiscard]] bool may_have_peers() const;

  [[nodiscard]] bool is_in_virtual_machine() const;
  [[nodiscard]] bool is_in_container() const;
  /// GPUs whose memory accesses the IOMMU translates: the type of their group begins with DMA.
  [[nodiscard]] std::vector<std::string> translated() const;
  /// Bridges above GPUs that send requests between peers up to the root complex.
  [[nodiscard]] std::vector<std::string> redirecting() const;
  /// What NVML says of all, or why it says nothing.
  [[nodiscard]] const json& nvml() const { return record_.at("/nvml"); }
  [[nodiscard]] bool has_nvml() const { return nvml().is_object() && !part_of(nvml(), "why").is_string(); }
  [[nodiscard]] std::string nvml_why() const;

 private:
  void add_from_bus(const std::string& address);
  void add_from_nvml(const std::string& address, const json& told);

  const system_record& record_;
  std::vector<gpu_facts> gpus_;
  std::vector<std::string> switches_, rdma_adapters_;
};

/// "gen 4 x16"; "?" stands for what is not known.
[[nodiscard]] std::string link_text(std::optional<int> lanes, std::optional<double> rate);
/// Bytes per second of data in one direction: rate × lanes less the coding of each generation. None where unknown.
[[nodiscard]] std::optional<double> link_bytes_per_second(std::optional<int> lanes, std::optional<double> rate);

}  // namespace weft::tool
