// SPDX-License-Identifier: Apache-2.0
#include "backends/opencl/driver/discovery.hpp"

#include "backends/common/own_place.hpp"
#include "core/environment.hpp"
#include "core/fnv.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace weft::opencl {
namespace {

// Numbers of extensions that the headers of a distribution may not know yet.
constexpr cl_device_info device_uuid_khr = 0x106A;
constexpr cl_device_info pci_bus_info_khr = 0x410F;
constexpr cl_device_info pci_bus_id_nv = 0x4008;
constexpr cl_device_info pci_slot_id_nv = 0x4009;
constexpr cl_device_info host_unified_memory = 0x1035;  // deprecated, and still the only one to tell

template <class T>
T device_info(const api& cl, cl_device_id device, cl_device_info what, T otherwise) {
  T value{};
  return cl.clGetDeviceInfo(device, what, sizeof value, &value, nullptr) == CL_SUCCESS ? value : otherwise;
}

template <class Query>
std::string text_of(Query query) {
  std::size_t size = 0;
  if (query(0, nullptr, &size) != CL_SUCCESS || size == 0) return {};
  std::string text(size, '\0');
  if (query(size, text.data(), nullptr) != CL_SUCCESS) return {};
  text.resize(std::min(text.find('\0'), text.size()));
  const std::size_t last = text.find_last_not_of(' ');
  text.resize(last == std::string::npos ? 0 : last + 1);
  return text;
}

std::string device_text(const api& cl, cl_device_id device, cl_device_info what) {
  return text_of([&](std::size_t size, void* into, std::size_t* needed) {
    return cl.clGetDeviceInfo(device, what, size, into, needed);
  });
}

bool lists(const std::string& extensions, std::string_view name) {
  std::istringstream words{extensions};
  for (std::string word; words >> word;) {
    if (word == name) return true;
  }
  return false;
}

std::string uuid_text(const std::array<unsigned char, 16>& raw) {
  std::string text;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    std::array<char, 3> two{};
    std::snprintf(two.data(), two.size(), "%02x", raw[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += two.data();
  }
  return text;
}

/// A name-based identity, where the driver has none: the same as long as platforms list their devices in one order.
std::string made_uuid(const std::string& place) {
  std::array<unsigned char, 16> raw{};
  detail::fnv hash;
  for (unsigned char& byte : raw) {
    hash.add_text(place);
    byte = static_cast<unsigned char>(hash.value() >> 56);
  }
  raw[6] = static_cast<unsigned char>((raw[6] & 0x0fU) | 0x80U);
  raw[8] = static_cast<unsigned char>((raw[8] & 0x3fU) | 0x80U);
  return uuid_text(raw);
}

std::string pci_text(unsigned domain, unsigned bus, unsigned device, unsigned function) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.%x", domain, bus, device, function);
  return text.data();
}

std::string pci_address_of(const api& cl, cl_device_id device, const std::string& extensions) {
  if (lists(extensions, "cl_khr_pci_bus_info")) {
    std::array<cl_uint, 4> where{};
    if (cl.clGetDeviceInfo(device, pci_bus_info_khr, sizeof where, where.data(), nullptr) == CL_SUCCESS)
      return pci_text(where[0], where[1], where[2], where[3]);
  }
  if (lists(extensions, "cl_nv_device_attribute_query")) {
    cl_uint bus = 0, slot = 0;
    if (cl.clGetDeviceInfo(device, pci_bus_id_nv, sizeof bus, &bus, nullptr) == CL_SUCCESS &&
        cl.clGetDeviceInfo(device, pci_slot_id_nv, sizeof slot, &slot, nullptr) == CL_SUCCESS)
      return pci_text(0, bus, slot >> 3, slot & 7);
  }
  return {};
}

/// "OpenCL C 1.2 PoCL" is 120; a device of OpenCL 3.0 lists its versions, newest last or first.
int newest_c_of(const api& cl, cl_device_id device) {
  int newest = 120;
  const std::string text = device_text(cl, device, CL_DEVICE_OPENCL_C_VERSION);
  int major = 0, minor = 0;
  if (std::sscanf(text.c_str(), "OpenCL C %d.%d", &major, &minor) == 2) newest = 100 * major + 10 * minor;
  std::size_t size = 0;
  if (cl.clGetDeviceInfo(device, CL_DEVICE_OPENCL_C_ALL_VERSIONS, 0, nullptr, &size) != CL_SUCCESS) return newest;
  std::vector<cl_name_version> all(size / sizeof(cl_name_version));
  if (cl.clGetDeviceInfo(device, CL_DEVICE_OPENCL_C_ALL_VERSIONS, size, all.data(), nullptr) != CL_SUCCESS)
    return newest;
  for (const cl_name_version& one : all) {
    newest =
        std::max(newest, static_cast<int>(100 * CL_VERSION_MAJOR(one.version) + 10 * CL_VERSION_MINOR(one.version)));
  }
  return newest;
}

/// "OpenCL 3.0 PoCL 3.1+debian Linux, …", of old ones "OpenCL 1.2 pocl 1.1 …"; of another platform never.
bool is_pocl_before(int version, const std::string& text) {
  int major = 0;
  return std::sscanf(text.c_str(), "OpenCL %*s %*1[Pp]o%*1[Cc]%*1[Ll] %d", &major) == 1 && major < version;
}

/// The files that name drivers, with what is wrong with each.
std::string wrong_icds() {
  const std::filesystem::path folder = detail::environment("OCL_ICD_VENDORS").value_or("/etc/OpenCL/vendors");
  std::string text;
  std::error_code failed;
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator{folder, failed}) {
    if (entry.path().extension() != ".icd") continue;
    ++seen;
    std::ifstream file{entry.path()};
    std::string library;
    std::getline(file, library);
    void* const opened = ::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (opened != nullptr) {
      ::dlclose(opened);
      continue;
    }
    const char* const why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps it per thread
    text += "; " + entry.path().string() + " names '" + library + "', which cannot be opened" +
            (why != nullptr ? std::string{" ("} + why + ")" : "");
  }
  if (seen == 0) text += "; there is no .icd file in " + folder.string() + ", so no driver is installed";
  return text;
}

class finder {
 public:
  finder(std::shared_ptr<const api> cl, const settings& wanted, int logical_devices, const left_out& leave_out)
      : cl_(std::move(cl)), wanted_(wanted), logical_devices_(logical_devices), leave_out_(leave_out) {}

  result<discovery> run() {
    cl_uint count = 0;
    cl_int status = cl_->clGetPlatformIDs(0, nullptr, &count);
    std::vector<cl_platform_id> platforms(count);
    if (status == CL_SUCCESS && count > 0) status = cl_->clGetPlatformIDs(count, platforms.data(), nullptr);
    if (status != CL_SUCCESS || count == 0) {
      return make_error(errc::unsupported, wanted_.library + " is there, but it knows no platform" +
                                               (status == CL_SUCCESS ? "" : ": " + name_of(status)) + wrong_icds());
    }
    for (const cl_platform_id platform : platforms) add(platform);
    if (found_.devices.empty()) {
      std::string text = "no OpenCL platform has a device that can be used";
      for (const std::string& note : found_.notes) text += "; " + note;
      return make_error(errc::unsupported, std::move(text));
    }
    return std::move(found_);
  }

 private:
  struct identity {
    std::string uuid, pci_address, name, platform;
  };

  void leave_out(const std::string& what, const std::string& why) {
    found_.notes.push_back(what + " is left out: " + why);
  }

  void add(cl_platform_id platform) {
    const auto told = [&](cl_platform_info what) {
      return text_of([&](std::size_t size, void* into, std::size_t* needed) {
        return cl_->clGetPlatformInfo(platform, what, size, into, needed);
      });
    };
    std::string name = told(CL_PLATFORM_NAME);
    if (name.empty()) name = "a platform without a name";
    const std::string title = "the platform " + name;
    cl_uint count = 0;
    cl_int status = cl_->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count);
    std::vector<cl_device_id> ids(count);
    if (status == CL_SUCCESS && count > 0)
      status = cl_->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, ids.data(), nullptr);
    if (status != CL_SUCCESS || count == 0)
      return leave_out(title, status == CL_SUCCESS ? "it has no device" : name_of(status));

    std::vector<device_place> here;
    here.reserve(ids.size());
    std::vector<identity> wholes;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      device_place whole;
      whole.id = ids[i];
      describe(whole, name + "/" + std::to_string(i));
      if (const std::string why = unfit(whole); !why.empty()) {
        leave_out(whole.description.name + " of " + title, why);
        continue;
      }
      wholes.push_back({whole.description.uuid, whole.description.pci_address, whole.description.name, name});
      for (device_place& one : split(std::move(whole))) {
        if (wanted_.at_most == 0 || found_.devices.size() + here.size() < static_cast<std::size_t>(wanted_.at_most))
          here.push_back(std::move(one));
      }
    }
    if (here.empty()) return;
    std::vector<cl_device_id> kept;
    kept.reserve(here.size());
    for (const device_place& one : here) kept.push_back(one.id);
    const std::array<cl_context_properties, 3> properties{CL_CONTEXT_PLATFORM,
                                                          reinterpret_cast<cl_context_properties>(platform), 0};
    cl_context context = cl_->clCreateContext(properties.data(), static_cast<cl_uint>(kept.size()), kept.data(),
                                              nullptr, nullptr, &status);
    if (status != CL_SUCCESS) return leave_out(title, "no context could be made: " + name_of(status));
    context_place place;
    place.platform = name;
    place.context = context_handle{cl_, context};
    place.orders_grids = is_pocl_before(6, told(CL_PLATFORM_VERSION));
    judge_memory(place, here);
    for (device_place& one : here) {
      one.context = found_.contexts.size();
      found_.devices.push_back(std::move(one));
    }
    found_.contexts.push_back(std::move(place));
    wholes_.insert(wholes_.end(), wholes.begin(), wholes.end());
  }

  /// Parts of as many compute units each, or the device as it is with a remark.
  std::vector<device_place> split(device_place whole) {
    std::vector<device_place> parts;
    if (logical_devices_ > 1) {
      auto ids = sub_devices(whole);
      if (!ids) found_.notes.push_back(whole.description.name + " stays whole: " + ids.error().what);
      if (ids) {
        parts.reserve(ids->size());
        for (device_handle& id : *ids) {
          device_place& part = parts.emplace_back();
          part.id = id.get();
          part.part = std::move(id);
          part.description.part_of = whole.description.uuid;
          describe(part, whole.description.uuid + "/" + std::to_string(parts.size() - 1));
        }
      }
    }
    if (parts.empty()) parts.push_back(std::move(whole));
    return parts;
  }

  [[nodiscard]] result<std::vector<device_handle>> sub_devices(const device_place& whole) const {
    const auto wanted = static_cast<std::size_t>(logical_devices_);
    const std::string what = "it cannot be split into " + std::to_string(wanted) + " parts";
    const int units = whole.description.compute_units;
    if (units < logical_devices_) {
      return make_error(errc::unsupported,
                        what + ", having " + std::to_string(units) + " compute unit" + (units == 1 ? "" : "s"));
    }
    const std::array<cl_device_partition_property, 3> how{CL_DEVICE_PARTITION_EQUALLY, units / logical_devices_, 0};
    cl_uint count = 0;
    cl_int status = cl_->clCreateSubDevices(whole.id, how.data(), 0, nullptr, &count);
    std::vector<cl_device_id> ids(count);
    if (status == CL_SUCCESS && count > 0)
      status = cl_->clCreateSubDevices(whole.id, how.data(), count, ids.data(), nullptr);
    if (status != CL_SUCCESS) return make_error(errc::unsupported, what + ": " + name_of(status));
    std::vector<device_handle> parts;
    parts.reserve(ids.size());
    for (const cl_device_id id : ids) parts.emplace_back(cl_, id);
    if (parts.size() < wanted)
      return make_error(errc::unsupported, what + ": the driver made " + std::to_string(parts.size()));
    parts.resize(wanted);  // seven units give seven parts of one unit where four were asked for
    return parts;
  }

  void describe(device_place& one, const std::string& place) const {
    const api& cl = *cl_;
    const std::string extensions = device_text(cl, one.id, CL_DEVICE_EXTENSIONS);
    device_description& made = one.description;
    made.name = device_text(cl, one.id, CL_DEVICE_NAME);
    if (made.name.empty()) made.name = "an OpenCL device";
    made.kind = backend_kind::opencl;
    made.memory = bytes{device_info<cl_ulong>(cl, one.id, CL_DEVICE_GLOBAL_MEM_SIZE, 0)};
    made.compute_units = static_cast<int>(device_info<cl_uint>(cl, one.id, CL_DEVICE_MAX_COMPUTE_UNITS, 1));
    std::array<unsigned char, 16> raw{};
    // parts of a device share its identity, so they get one that is made
    if (!one.part && lists(extensions, "cl_khr_device_uuid") &&
        cl.clGetDeviceInfo(one.id, device_uuid_khr, raw.size(), raw.data(), nullptr) == CL_SUCCESS)
      made.uuid = uuid_text(raw);
    if (!one.part) made.pci_address = pci_address_of(cl, one.id, extensions);
    if (made.uuid.empty()) made.uuid = made_uuid("weft-opencl/" + place + "/" + made.name);
    made.capabilities = capability::kernels | capability::timing | capability::pinned_memory;
    one.largest_allocation = device_info<cl_ulong>(cl, one.id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, 0);
    one.largest_group = device_info<std::size_t>(cl, one.id, CL_DEVICE_MAX_WORK_GROUP_SIZE, 1);
    std::array<std::size_t, 16> sides{};
    if (cl.clGetDeviceInfo(one.id, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof sides, sides.data(), nullptr) == CL_SUCCESS)
      std::copy_n(sides.begin(), one.largest_sides.size(), one.largest_sides.begin());
    one.is_processor = (device_info<cl_device_type>(cl, one.id, CL_DEVICE_TYPE, 0) & CL_DEVICE_TYPE_CPU) != 0;
    one.newest_c = newest_c_of(cl, one.id);
    one.correctly_rounded_float = (device_info<cl_device_fp_config>(cl, one.id, CL_DEVICE_SINGLE_FP_CONFIG, 0) &
                                   CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0;
  }

  /// Why a device cannot be used; empty if it can.
  [[nodiscard]] std::string unfit(const device_place& one) const {
    if (device_info<cl_bool>(*cl_, one.id, CL_DEVICE_AVAILABLE, CL_FALSE) == CL_FALSE) return "it is not available";
    if (device_info<cl_bool>(*cl_, one.id, CL_DEVICE_COMPILER_AVAILABLE, CL_FALSE) == CL_FALSE)
      return "it has no compiler";
    if (one.description.memory.value() == 0) return "it says that it has no memory";
    if (leave_out_ && leave_out_(one.description)) return "an earlier backend of the machine has it";
    const device_description& made = one.description;
    for (const identity& other : wholes_) {
      const bool same_place = !made.pci_address.empty() && made.pci_address == other.pci_address;
      if (same_place || made.uuid == other.uuid)
        return "it is the same device as " + other.name + " of the platform " + other.platform;
    }
    return {};
  }

  /// Whether all devices of a context and the host have one memory.
  void judge_memory(context_place& place, std::vector<device_place>& devices) const {
    const api& cl = *cl_;
    if (!wanted_.shared_memory || cl.clSVMAlloc == nullptr || cl.clSVMFree == nullptr) return;
    place.shared_memory = place.atomics = place.adopts_whole = true;
    for (const device_place& one : devices) {
      const auto svm = device_info<cl_device_svm_capabilities>(cl, one.id, CL_DEVICE_SVM_CAPABILITIES, 0);
      const bool of_the_host =
          one.is_processor || device_info<cl_bool>(cl, one.id, host_unified_memory, CL_FALSE) == CL_TRUE;
      if ((svm & CL_DEVICE_SVM_FINE_GRAIN_BUFFER) == 0 || !of_the_host) place.shared_memory = false;
      if ((svm & CL_DEVICE_SVM_ATOMICS) == 0) place.atomics = false;
      if ((svm & CL_DEVICE_SVM_FINE_GRAIN_SYSTEM) == 0 && !one.is_processor) place.adopts_whole = false;
    }
    place.atomics = place.atomics && place.shared_memory;
    place.adopts_whole = place.adopts_whole && place.atomics;
  }

  std::shared_ptr<const api> cl_;
  const settings& wanted_;
  int logical_devices_;
  const left_out& leave_out_;
  discovery found_;
  std::vector<identity> wholes_;  // the devices of the platforms before, as they were before they were split
};

}  // namespace

result<discovery> discover(const std::shared_ptr<const api>& cl, const settings& wanted, int logical_devices,
                           const left_out& leave_out) {
  auto found = finder{cl, wanted, logical_devices, leave_out}.run();
  if (!found) return found;
  // what is said of one device depends on the others: one memory for all, or access to a neighbour
  const bool one_context = found->contexts.size() == 1;
  for (device_place& one : found->devices) {
    const context_place& place = found->contexts[one.context];
    one.description.rings_by_commands = !place.atomics;
    if (!place.shared_memory) continue;
    capability& set = one.description.capabilities;
    if (one_context) set = set | capability::unified_memory;
    const auto neighbours = std::count_if(found->devices.begin(), found->devices.end(),
                                          [&](const device_place& other) { return other.context == one.context; });
    if (neighbours > 1) {
      set = set | capability::peer_to_peer;
      if (place.atomics) set = set | capability::native_atomics;
    }
  }
  return found;
}

result<topology> layout_of(const discovery& found) {
  const int count = static_cast<int>(found.devices.size());
  topology made;
  made.name = "opencl";
  made.description = "OpenCL devices; what joins them is not told by OpenCL, and unknown until measured";
  made.simulated = false;
  made.access.assign(found.devices.size() * found.devices.size(), false);
  const auto join = [&](int from, int to, bool shared, bool atomics) {
    topology_link link;
    link.from = from;
    link.to = to;
    link.wire = static_cast<int>(made.links.size());
    link.kind = shared ? link_kind::host_memory : link_kind::unknown;
    link.native_atomics = atomics;
    made.links.push_back(link);
  };
  for (int d = 0; d < count; ++d) {
    const device_place& one = found.devices[static_cast<std::size_t>(d)];
    topology_device device;
    device.name = one.description.name;
    device.memory = one.description.memory;
    device.compute_units = one.description.compute_units;
    device.pci_address = common::own_place(found.devices, one.description);
    device.capabilities = one.description.capabilities;
    made.devices.push_back(std::move(device));
    made.nodes.push_back({.kind = node_kind::device, .name = to_string(device_id{d}), .parent = count});
  }
  made.nodes.push_back({.kind = node_kind::socket, .name = "socket0"});
  for (int d = 0; d < count; ++d) {
    const device_place& one = found.devices[static_cast<std::size_t>(d)];
    const context_place& place = found.contexts[one.context];
    join(d, count, place.shared_memory, place.atomics);
    join(count, d, place.shared_memory, place.atomics);
    for (int other = 0; other < count; ++other) {
      if (other == d || found.devices[static_cast<std::size_t>(other)].context != one.context) continue;
      if (!place.shared_memory) continue;
      join(d, other, true, place.atomics);
      made.access[made.pair(device_id{d}, device_id{other})] = true;
    }
  }
  return complete_topology(std::move(made));
}

}  // namespace weft::opencl
