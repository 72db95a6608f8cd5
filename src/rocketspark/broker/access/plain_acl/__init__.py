"""Access control 1.0: the rules of conf/plain_acl.yml and conf/acl/. Start with rules."""
