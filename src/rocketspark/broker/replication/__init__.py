"""Replication: the brokers that share one brokerName, each of which has a role and copies or is copied from.

The words of this package, each with one meaning:

- master: the broker of a name that takes messages; slave: a broker that copies the master's log and tables.
- link: one TCP connection from a slave to its master's replication port (haListenPort), over which the log is sent.
- door: what a connection to the replication port passes before it is a link, where access control is on: each side
  proves that it is a broker of the cluster.
- role: what a broker is now: master, slave, acting master or fenced (see `role.Role`).
- fenced: the broker refuses every write, because a controller has not told it yet who is master, or because it ends.
- office: a broker takes office when it becomes the master, and is in office while it answers as the master.
- acting: a slave does the work of a master that is gone: it delivers delayed messages and timer messages, answers
  pulls and keeps offsets, but takes no new messages (enableSlaveActingMaster).
- escape: while a slave acts, a message whose time has come is sent to another broker, because the slave may not store
  it (enableRemoteEscape).
- in-sync set: the replicas that a controller may elect as the next master, because they hold all that was acknowledged.
- learner: a slave that copies and may not become a member of the in-sync set.
- epoch: the number of a term of office under a controller; each newly elected master has a higher one.

Start with role_changes, which carries out every change of role. link/ sends the log, slave_synchronize copies the
tables beside it, waits says what the answer to a send waits for, acting/ is the acting master.
"""
