"""Groups of controllers as processes, ours or official ones (DLedger's and jRaft's kind), and who of them leads.

Rule: each keeps its ports and its folder, so that it may be killed and started again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from tests.java.apache import ApacheController, ask
from tests.java.apache_pair import until
from tests.java.our_controller import EVERY, OurServer
from tests.support.ports import free_ports

Maker = Literal["ours", "dledger", "jraft"]


def leader_of(addresses: dict[str, str], but: str = "") -> str:
    """The name of the controller that all others but one say leads; "" if they do not agree."""
    told = set()
    for name, address in addresses.items():
        if name != but:
            try:
                told.add(ask(address, 1005).ext_fields.get("controllerLeaderAddress", ""))
            except OSError:
                return ""
    leader = told.pop() if len(told) == 1 else ""
    return next((name for name, address in addresses.items() if address == leader), "")


class OneOfThree(ApacheController):
    """Ready once it listens: it leads, or knows who does, only when others run."""

    def _is_ready(self) -> bool:
        return ask(self.controller, 1005).code == 0


class Controllers:
    """`servers`, `addresses`: by name; `address`: all of them, as brokers are told."""

    def __init__(self, folder: Path, maker: Maker = "ours", count: int = 3) -> None:
        self.addresses = {f"n{number}": f"127.0.0.1:{free_ports()}" for number in range(count)}
        self.address = ";".join(self.addresses.values())
        self.servers: dict[str, Any] = {}
        peers = ";".join(f"{name}-{address}" for name, address in self.addresses.items())
        raft = [f"127.0.0.1:{free_ports()}" for _ in range(count)] if maker == "jraft" else []
        try:
            for number, (name, address) in enumerate(self.addresses.items()):
                place = folder / name
                if maker == "ours":
                    config = f"{EVERY}scanInactiveMasterInterval=1000\ncontrollerDLegerPeers={peers}\n"
                    config += f"controllerDLegerSelfId={name}\ncontrollerStorePath={place / 'state'}\n"
                    self.servers[name] = OurServer(place, "controller", config)
                    continue
                # One of its addresses of loopback alone (DLedger's): relays listen at the others.
                keys: dict[str, Any] = {"bindAddress": "127.0.0.1", "controllerDLegerPeers": peers}
                keys["controllerDLegerSelfId"] = name
                if maker == "jraft":
                    keys |= {
                        "controllerType": "jRaft",
                        "jRaftServerId": raft[number],
                        "jRaftInitConf": ",".join(raft),
                        "jRaftControllerRPCAddr": ",".join(self.addresses.values()),
                    }
                self.servers[name] = OneOfThree(place, keys, int(address.rpartition(":")[2]))
            until(self.leader, what="a leader of the controllers")
        except BaseException:
            self.kill()
            raise

    def leader(self, but: str = "") -> str:
        """The name of the one that leads, if all but one say the same; else ""."""
        return leader_of(self.addresses, but)

    def leading(self) -> str:
        """The address of one that says it leads. Raises OSError if none does."""
        for address in self.addresses.values():
            try:
                if ask(address, 1005, timeout_s=5).ext_fields.get("isLeader") == "true":
                    return address
            except OSError:
                continue
        raise OSError("no controller says that it leads")

    def kill(self) -> None:
        """End all by force."""
        for server in self.servers.values():
            server.kill()
