"""Groups of three or more controllers, which keep the state of one and agree on each change.

The agreement is Raft, of the library pysyncobj (the extra `controllers`); what lies around it is here.

Start with entries (what is agreed on), then raft_log (how it becomes durable), raft_member (the library, and what is
put in its place), raft_thread (what drives it), links (what members tell each other), founding (who may vote at the
first start) and group_journal (which the controller's handlers know)."""
