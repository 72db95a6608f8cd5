"""Options that several commands share, each declared once. Rule: a command that asks a cluster takes them all, as one
argument `at`, so that none can forget keys or TLS; a secret in the command line is warned of.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import typer

# What makes a group of the values of its options, which it takes from all.
Maker = Callable[[dict[str, Any]], Any]

NAMESRV_DEFAULT = "127.0.0.1:9876"
_PANEL = "Keys and TLS"
# What every option of a secret is called in the environment.
SECRET_KEY_VARIABLE, SECRET_KEY_FILE_VARIABLE = "ROCKETMQ_SECRET_KEY", "ROCKETMQ_SECRET_KEY_FILE"
PASSWORD_VARIABLE, PASSWORD_FILE_VARIABLE = "ROCKETMQ_TLS_KEY_PASSWORD", "ROCKETMQ_TLS_KEY_PASSWORD_FILE"

CONTEXT_VARIABLE = "ROCKETSPARK_CONTEXT"
_SECRETS = {"--secret-key": SECRET_KEY_VARIABLE, "--security-token": "ROCKETMQ_SECURITY_TOKEN"}


def _option(name: str, variable: str, text: str, **more: Any) -> Any:
    return typer.Option(name, envvar=variable, help=text, show_default=False, rich_help_panel=_PANEL, **more)


Namesrv = Annotated[
    str,
    typer.Option(
        "-n",
        "--namesrv",
        envvar=["ROCKETMQ_NAMESRV_ADDR", "NAMESRV_ADDR"],
        help="NameServers, host:port;host:port.",
    ),
]
ContextName = Annotated[
    str,
    typer.Option(
        "--context",
        envvar=CONTEXT_VARIABLE,
        show_default=False,
        help="A cluster by the name it has in `context list`, with its keys [default: the current one, where nothing"
        " names a cluster].",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for scripts.")]
AccessKey = Annotated[str, _option("--access-key", "ROCKETMQ_ACCESS_KEY", "The user's name, if brokers ask for it.")]
SecretKeyFile = Annotated[
    Path | None,
    _option("--secret-key-file", SECRET_KEY_FILE_VARIABLE, "A file whose first line is his secret key."),
]
SecretKey = Annotated[
    str, _option("--secret-key", SECRET_KEY_VARIABLE, "His secret key; process lists show it: prefer the other ways.")
]
SecurityToken = Annotated[
    str,
    _option("--security-token", "ROCKETMQ_SECURITY_TOKEN", "A session's token; process lists show it."),
]
Tls = Annotated[
    bool | None,
    _option("--tls/--no-tls", "ROCKETMQ_TLS", "Encrypt all connections; the servers' certificates are checked."),
]
TlsCa = Annotated[
    str, _option("--tls-ca", "ROCKETMQ_TLS_CA", "PEM file of the authorities to trust, else the system's; means --tls.")
]
TlsCert = Annotated[str, _option("--tls-cert", "ROCKETMQ_TLS_CERT", "PEM file of the client's own certificate chain.")]
TlsKey = Annotated[str, _option("--tls-key", "ROCKETMQ_TLS_KEY", "PEM file of its private key.")]
TlsKeyPasswordFile = Annotated[
    Path | None,
    _option(
        "--tls-key-password-file",
        PASSWORD_FILE_VARIABLE,
        f"A file whose first line is the private key's password; or {PASSWORD_VARIABLE} has it.",
    ),
]
TlsVerify = Annotated[
    str,
    _option("--tls-verify", "ROCKETMQ_TLS_VERIFY", "full: chain and name (the default); ca: the chain; none: nothing."),
]
TlsServerName = Annotated[
    str, _option("--tls-server-name", "ROCKETMQ_TLS_SERVER_NAME", "The name in the certificates, if not the address.")
]


class ClusterAccess(NamedTuple):
    """A cluster, and the keys and TLS to connect with: the options of every command that asks a cluster."""

    namesrv: Namesrv = NAMESRV_DEFAULT
    context: ContextName = ""
    access_key: AccessKey = ""
    secret_key_file: SecretKeyFile = None
    secret_key: SecretKey = ""
    security_token: SecurityToken = ""
    tls: Tls = None
    tls_ca: TlsCa = ""
    tls_cert: TlsCert = ""
    tls_key: TlsKey = ""
    tls_key_password_file: TlsKeyPasswordFile = None
    tls_verify: TlsVerify = ""
    tls_server_name: TlsServerName = ""
    # Of a context: no options.
    secret_key_command: tuple[str, ...] = ()
    stored_secret_key: str = ""

    def __repr__(self) -> str:
        return f"ClusterAccess({self.namesrv!r}, {'signed' if self.access_key else 'not signed'})"

    def in_context(self, typed: Set[str], environment: Set[str]) -> ClusterAccess:
        """Return the access to the cluster that is meant: the one of --namesrv, of --context, of the environment's
        address, of the environment's context, of the current context, or the one on this machine; `context` is the name
        of the one used.

        `typed`, `environment`: the names of the options that the command line and the environment gave. What the
        environment says of keys and TLS is for its own address: with a context's address only what was typed replaces
        the context's. Raises BadParameter, ConfigError.
        """
        if "namesrv" in typed:
            if "context" in typed and self.context:
                raise typer.BadParameter("--namesrv and --context exclude each other")
            return self._replace(context="")
        # An empty name says: none, also not the current one.
        if "context" not in typed and "namesrv" in environment:
            return self._replace(context="")
        from rocketspark.cli.contexts import read_contexts

        if "context" in typed | environment and not self.context:
            return self
        known = read_contexts()
        name = self.context or known.current
        if not name:
            return self
        context = known.get(name)
        keys = {"access_key", "secret_key_file", "secret_key", "security_token"}
        # An access key of one and a secret of the other would be neither's.
        of_line = {key: getattr(self, key) for key in keys & typed}
        values: dict[str, Any] = dict.fromkeys(keys, "") | {"secret_key_file": None} | of_line
        if not of_line:
            if not context.access_key and self.access_key:
                print(f"warning: context {name} has no keys; those of the environment are not for it", file=sys.stderr)
            values |= {
                "access_key": context.access_key,
                "secret_key_file": Path(context.secret_key_file) if context.secret_key_file else None,
                "secret_key_command": context.secret_key_command,
                "stored_secret_key": context.secret_key,
            }
        for field in ("tls", "tls_ca", "tls_cert", "tls_key", "tls_verify", "tls_server_name"):
            values[field] = getattr(self, field) if field in typed else getattr(context, field)
        file = context.tls_key_password_file
        if "tls_key_password_file" not in typed:
            values["tls_key_password_file"] = Path(file) if file else None
        return self._replace(namesrv=context.namesrv, context=name, **values)

    def client_options(self) -> dict[str, Any]:
        """Return the arguments of clients and operations, without what was not given. Raises ConfigError."""
        from rocketspark.cli.passwords import secret_of

        secret = secret_of(self.secret_key, self.secret_key_file, "--secret-key", SECRET_KEY_VARIABLE)
        if self.secret_key_command:
            from rocketspark.cli.contexts import secret_of_command
            from rocketspark.errors import ConfigError

            try:
                secret = secret_of_command(self.secret_key_command)
            except ConfigError as e:
                raise ConfigError(f"context {self.context}: {e}") from None
        values = {
            "access_key": self.access_key,
            "secret_key": secret or self.stored_secret_key,
            "security_token": secret_of(self.security_token, None, "--security-token", "ROCKETMQ_SECURITY_TOKEN"),
        }
        return {name: value for name, value in values.items() if value} | self._tls_options()

    def check_address(self, options: Iterable[str]) -> None:
        """Raise BadParameter if one of the `options`, name=value, is another cluster's address: a context's keys are
        for its own.
        """
        if self.context and any(text.partition("=")[0].strip().lower() == "namesrv" for text in options):
            raise typer.BadParameter(f"context {self.context} has its own address: give --namesrv, or no -o namesrv=")

    def _tls_options(self) -> dict[str, Any]:
        from rocketspark.cli.passwords import secret_in_environment

        # The environment's password is for the environment's private key.
        variable = "" if self.context else PASSWORD_VARIABLE
        password = secret_in_environment(variable, self.tls_key_password_file)
        values = {
            "tls_ca": self.tls_ca,
            "tls_cert": self.tls_cert,
            "tls_key": self.tls_key,
            "tls_key_password": password,
            "tls_verify": self.tls_verify,
            "tls_server_name": self.tls_server_name,
        }
        given = {name: value for name, value in values.items() if value}
        wanted = bool(given) if self.tls is None else self.tls
        # Switched off by hand, what the environment says of certificates is of no use.
        return {"use_tls": True, **given} if wanted else {}


def access_variables() -> list[str]:
    """Return the environment variables of keys and TLS, from which commands take what no option gives."""
    hints = [get_args(hint) for hint in get_type_hints(ClusterAccess, include_extras=True).values()]
    named = [notes[1].envvar for notes in hints if len(notes) > 1 and hasattr(notes[1], "envvar")]
    return [*(name for name in named if isinstance(name, str)), PASSWORD_VARIABLE]


def without_secrets(words: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Return a command line without the secrets in it, and the environment variables that give them to a process."""
    left, environment, rest = list[str](), dict[str, str](), iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if option not in _SECRETS:
            left.append(word)
            continue
        environment[_SECRETS[option]] = value if equals else next(rest, "")
        if option == "--secret-key":
            environment[SECRET_KEY_FILE_VARIABLE] = ""
    return left, environment


# The default of a command's argument `at`.
HERE = ClusterAccess()


class LeftOut(frozenset[str]):
    """The names of options of a group that one command does not have: `shared: Annotated[SharedOptions,
    LeftOut("options")]`.
    """

    def __new__(cls, *names: str) -> LeftOut:
        return super().__new__(cls, names)


def _group(annotation: Any) -> tuple[type[Any] | None, frozenset[str]]:
    """Return the NamedTuple of options that an argument's type is, None if it is none, and what is left out of it."""
    left_out: frozenset[str] = frozenset()
    if get_origin(annotation) is Annotated:
        annotation, *notes = get_args(annotation)
        left_out = next((note for note in notes if isinstance(note, LeftOut)), left_out)
    is_group = isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_field_defaults")
    return annotation if is_group else None, left_out


def _fields(group: type[Any], left_out: frozenset[str]) -> tuple[list[inspect.Parameter], Maker]:
    """Return the parameters of a NamedTuple of options, those of groups in it too, and what makes it of them. A field
    whose type is not Annotated is no option of a command and keeps its default.
    """
    # A group that Spark's executors import too names typer, and does not import it.
    hints = get_type_hints(group, localns={"typer": typer}, include_extras=True)
    parameters: list[inspect.Parameter] = []
    makers: dict[str, Maker] = {}
    for name, default in group._field_defaults.items():
        inner, _ = _group(hints[name])
        if inner is not None:
            more, makers[name] = _fields(inner, left_out)
            parameters += more
        elif name not in left_out and get_origin(hints[name]) is Annotated:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(name, kind, default=default, annotation=hints[name]))
            makers[name] = functools.partial(_popped, name)

    def make(given: dict[str, Any]) -> Any:
        made = group(**{name: make(given) for name, make in makers.items()})
        # Where nothing names a cluster, no context does.
        if isinstance(made, ClusterAccess) and {"namesrv", "context"} <= makers.keys():
            return made.in_context(given[_TYPED], given[_ENVIRONMENT])
        return made

    return parameters, make


def _popped(name: str, given: dict[str, Any]) -> Any:
    return given.pop(name)


# Beside the options' values: which of them the command line gave, and which the environment. No option has such a name.
_CALLED, _TYPED, _ENVIRONMENT = "called_context", " typed", " environment"


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer in which each argument whose type is a NamedTuple of options is replaced by those
    options.
    """
    own = inspect.signature(command, eval_str=True).parameters.values()
    makers: dict[str, Maker] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in own:
        group, left_out = _group(parameter.annotation)
        if group is not None:
            inner, makers[parameter.name] = _fields(group, left_out)
            parameters += inner
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    if not makers:
        return command

    names = [p.name for p in parameters]
    if in_contexts := {"namesrv", "context"} <= set(names):
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(_CALLED, kind, annotation=typer.Context))

    @functools.wraps(command)
    def called(**given: Any) -> None:
        sources = {}
        if in_contexts:
            source = given.pop(_CALLED).get_parameter_source
            sources = {name: getattr(source(name), "name", "") for name in names}
        given[_TYPED] = {name for name, where in sources.items() if where == "COMMANDLINE"}
        given[_ENVIRONMENT] = {name for name, where in sources.items() if where == "ENVIRONMENT"}
        grouped = {name: make(given) for name, make in makers.items()}
        del given[_TYPED], given[_ENVIRONMENT]
        command(**given, **grouped)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called
