// What the command lines of the programs include, compiled once. Used by the build (ouro_cold in
// tools/CMakeLists.txt); no file includes it, and every file includes what it needs.
#pragma once
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
