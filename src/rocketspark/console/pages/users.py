"""Users and rules of access control 2.0: who there is, who may do what, and how that is changed."""

from __future__ import annotations

from starlette.responses import Response

from rocketspark.admin.access import ACTIONS, DECISIONS, USER_TYPES
from rocketspark.console.call import Call, Confirmation, Done, Failed, Form, together
from rocketspark.console.content.asked import needed
from rocketspark.console.routes import change, page
from rocketspark.errors import UsageError

HOME = "/users"
# What an error says of a broker that has no users: it has no code of its own.
NO_CONTROL = "without access control"


async def users(call: Call) -> Response:
    """The users and the rules, as the brokers have them."""
    people, rules = await together(
        call.attempt(call.read("users", lambda admin: admin.list_users())),
        call.attempt(call.read("acls", lambda admin: admin.list_acls())),
    )
    by_user: dict[tuple[str, str, str], list[str]] = {}
    for user in people if isinstance(people, list) else ():
        by_user.setdefault((user.username, user.user_type, user.status), []).append(user.broker_name)
    by_rule: dict[tuple[object, ...], list[str]] = {}
    for rule in rules if isinstance(rules, list) else ():
        key = (rule.subject, rule.resource, rule.actions, rule.source_ips, rule.decision, rule.policy_type)
        by_rule.setdefault(key, []).append(rule.broker_name)
    return call.page(
        "users.html",
        people=people,
        is_off=isinstance(people, Failed) and NO_CONTROL in people.text,
        rules=rules,
        by_user=sorted(by_user.items()),
        by_rule=sorted(by_rule.items(), key=lambda item: item[0][:2]),
        types=[(kind, kind) for kind in reversed(USER_TYPES)],
        decisions=[(decision, decision) for decision in DECISIONS],
        actions=ACTIONS,
    )


def _user(form: Form) -> str:
    name = form.get("username", "").strip()
    if not name:
        raise UsageError("a user needs a name")
    return name


def _on(brokers: list[str]) -> str:
    return f"on {', '.join(brokers)}"


async def create_words(call: Call, form: Form) -> Confirmation:
    """Say which user is created."""
    name, kind = _user(form), form.get("user_type", "Normal")
    if not form.get("password", "").strip():
        raise UsageError("a user needs a password that is not blank")
    what = "He may do everything, rules or not." if kind == "Super" else "He may do what rules allow him."
    return Confirmation(f"Create the {kind.lower()} user {name}", (what, "On every master."), "Create", HOME)


async def create(call: Call, form: Form) -> Done:
    """Create a user."""
    name, kind = _user(form), form.get("user_type", "Normal")
    brokers = await call.ask(lambda admin: admin.create_user(name, form["password"], user_type=kind))
    return Done(f"User {name} was created {_on(brokers)}.", HOME)


async def status_words(call: Call, form: Form) -> Confirmation:
    """Say who is let in or shut out."""
    name, status = needed(form, "username"), form.get("status", "")
    what = "His requests are refused from then on." if status == "disable" else "His requests are taken again."
    return Confirmation(f"{status.capitalize()} user {name}", (what,), status.capitalize(), HOME)


async def set_status(call: Call, form: Form) -> Done:
    """Let a user in, or shut him out."""
    name, status = needed(form, "username"), form.get("status", "")
    brokers = await call.ask(lambda admin: admin.update_user(name, status=status))
    return Done(f"User {name} is {status}d {_on(brokers)}.", HOME)


async def password_words(call: Call, form: Form) -> Confirmation:
    """Say whose password is changed."""
    name = _user(form)
    if not form.get("password", "").strip():
        raise UsageError("give the new password")
    return Confirmation(f"Change the password of {name}", ("The old one is refused from then on.",), "Change", HOME)


async def set_password(call: Call, form: Form) -> Done:
    """Change a user's password."""
    name = _user(form)
    brokers = await call.ask(lambda admin: admin.update_user(name, password=form["password"]))
    return Done(f"The password of {name} was changed {_on(brokers)}.", HOME)


async def delete_words(call: Call, form: Form) -> Confirmation:
    """Say which user goes."""
    name = needed(form, "username")
    found = await call.ask(lambda admin: admin.list_acls(name))
    count = len({rule.resource for rule in found if rule.subject == f"User:{name}"})
    return Confirmation(f"Delete user {name}", (f"His {count} rules go with him.",), f"Delete {name}", HOME, grave=True)


async def delete(call: Call, form: Form) -> Done:
    """Delete a user and his rules."""
    name = needed(form, "username")
    brokers = await call.ask(lambda admin: admin.delete_user(name))
    return Done(f"User {name} was deleted {_on(brokers)}.", HOME)


def _rule(form: Form) -> tuple[str, str, list[str], str, list[str]]:
    resource = form.get("resource", "").strip()
    actions = [action for action in ACTIONS if form.get(f"action-{action}")]
    if not actions:
        raise UsageError("a rule needs an action")
    ips = [part.strip() for part in form.get("source_ips", "").split(",") if part.strip()]
    return _user(form), resource, actions, form.get("decision", "Allow"), ips


async def rule_words(call: Call, form: Form) -> Confirmation:
    """Say what is allowed or denied to whom."""
    name, resource, actions, decision, ips = _rule(form)
    place = f" from {', '.join(ips)}" if ips else ""
    title = f"{decision} {name} {', '.join(actions)} on {resource}{place}"
    return Confirmation(title, ("A rule of his for the same resource is replaced. On every master.",), decision, HOME)


async def put_rule(call: Call, form: Form) -> Done:
    """Put a rule."""
    name, resource, actions, decision, ips = _rule(form)
    brokers = await call.ask(
        lambda admin: admin.create_acl(name, [resource], actions, decision=decision, source_ips=ips)
    )
    return Done(f"The rule of {name} for {resource} was put {_on(brokers)}.", HOME)


async def drop_words(call: Call, form: Form) -> Confirmation:
    """Say which rule goes."""
    name, resource, kind = needed(form, "subject"), needed(form, "resource"), needed(form, "policy")
    what = "What it allowed or denied is decided by his other rules then."
    title = f"Delete the {kind} rule of {name} for {resource}"
    return Confirmation(title, (what,), "Delete", HOME, grave=True)


async def drop_rule(call: Call, form: Form) -> Done:
    """Delete a rule."""
    name, resource, kind = needed(form, "subject"), needed(form, "resource"), needed(form, "policy")
    brokers = await call.ask(lambda admin: admin.delete_acl(name, resource=resource, policy_type=kind))
    return Done(f"The {kind} rule of {name} for {resource} was deleted {_on(brokers)}.", HOME)


ROUTES = [
    page("/users", users),
    change("/users/create", create_words, create),
    change("/users/status", status_words, set_status),
    change("/users/password", password_words, set_password),
    change("/users/delete", delete_words, delete),
    change("/rules/put", rule_words, put_rule),
    change("/rules/delete", drop_words, drop_rule),
]
