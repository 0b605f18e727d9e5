"""Settings of Spark without which a load would not be exact: the engine makes them, no project may change them."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import ConfigError

# Without these, rows would be lost or doubled when Spark runs something again, or values changed.
EXACT = {
    # A stage that is run again may split its rows differently, while parts that have a receipt
    # stay as they were. The run is tried again as a whole instead.
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}


def check_conf(conf: Mapping[str, str], place: str = "") -> None:
    """Refuse settings of the user that would lose, double or change rows."""
    wrong = [name for name, wanted in EXACT.items() if conf.get(name, wanted).lower() != wanted.lower()]
    if wrong:
        raise ConfigError(
            f"[spark.conf] cannot set {', '.join(wrong)}",
            why="; ".join(f"a load is exact only with {name} = {EXACT[name]}" for name in wrong),
            kept="nothing was touched",
            remedy=f"remove {', '.join(wrong)} from [spark.conf]",
            place=place,
        )
