"""Options of the page's server, in a module that `thresher view --help` can import quickly."""

from dataclasses import dataclass

from thresher.options import option

LOCAL_HOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Where the page is served."""

    host: str = option(LOCAL_HOST, only_with={"export": False})
    """Address to listen on. Any other than 127.0.0.1 makes your images reachable by others."""
    port: int = option(0, ge=0, le=65535, only_with={"export": False})
    """Port to listen on; 0 picks a free one."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in (LOCAL_HOST, "localhost", "::1")
