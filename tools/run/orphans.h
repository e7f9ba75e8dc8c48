// Orphans: processes of a rank's family that were reparented to this process when their parents ended. Used
// in this folder. The launcher, its guardian and its agents each have one thread.
#pragma once
#include <sys/types.h>

namespace ouro::run {

/// Marks a child that a caller waits for: it is no orphan until forget_child().
void keep_child(pid_t);
void forget_child(pid_t);
/// Keeps all children that there are now: they are those of the program that became this one.
void keep_children();
/// Reaps the orphans that have ended. Otherwise they would count as processes until the job ends.
void reap_orphans();
/// Kills and reaps all orphans. Takes at most about a second.
void end_orphans();

}  // namespace ouro::run
