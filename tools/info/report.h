// Facts and checks as text for people and as JSON for programs. Pure. Used by ouro-info.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/core/env.h"
#include "tools/info/doctor.h"
#include "tools/info/facts.h"

namespace ouro::info {

// Sections of text; each ends with a newline.
std::string brief(const Facts&, const std::vector<Check>&);  ///< nine lines
std::string version_line(const Facts&);
std::string devices(const Facts&);   ///< devices and transports, present and missing, and why
std::string topology(const Facts&);  ///< packages, caches, cores, and which cores share which cache
std::string limits(const Facts&);    ///< memory, files, locked memory, processor quota
std::string parameters(const std::vector<env::Setting>&);
std::string build(const Facts&);
std::string doctor(const std::vector<Check>&, int ranks);

nlohmann::ordered_json to_json(const Facts&, const std::vector<env::Setting>&);
nlohmann::ordered_json to_json(const std::vector<Check>&, int ranks);

}  // namespace ouro::info
