#!/usr/bin/env python3
"""Compares Kubernetes manifests with the settings of the program. Needs Python 3.11 or newer and PyYAML.

    for overlay in small production small/topics production/topics; do
        kubectl kustomize deploy/kubernetes/overlays/$overlay | scripts/check-kubernetes.py -
    done

Each argument is a file of rendered YAML; `-` is standard input. The script renders nothing. One line per finding, and
exit code 1 where there is one. A finding is

- a key of a utxo-store.toml in a ConfigMap, or a variable UTXO_STORE__…, that deploy/utxo-store.toml does not have;
- a variable that looks like a setting and is not read (one underscore, or TERANODE_…);
- a container whose --config names a file that no ConfigMap of the same input gives;
- a setting ending in `_file` whose file no volume of the container gives;
- a grace period of an instance that is not longer than the drain and a commit;
- a PrometheusRule that differs from deploy/prometheus/utxo-store.rules.yml.
"""

import posixpath
import re
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "deploy/utxo-store.toml"
RULES = ROOT / "deploy/prometheus/utxo-store.rules.yml"
# Section whose keys are librdkafka's.
PROPERTIES = "kafka.properties"
# A commit after the drain: docs/operating/install.md.
COMMIT_SECONDS = 10


def settings_of_the_sample():
    """Returns the paths of all settings, also of those that are commented out because they have no default."""
    settings, section = set(), ""
    for line in SAMPLE.read_text().splitlines():
        if found := re.fullmatch(r"(?:# )?\[([a-z_.]+)\]", line):
            section = found[1]
        elif found := re.match(r"(?:# )?([a-z_0-9]+) = ", line):
            settings.add(f"{section}.{found[1]}")
    return settings


def leaves(table, path=""):
    """Yields path and value of each key of a TOML table."""
    for key, value in table.items():
        key_path = f"{path}.{key}" if path else key
        if isinstance(value, dict) and key_path != PROPERTIES:
            yield from leaves(value, key_path)
        else:
            yield key_path, value


def is_known(path, settings):
    return path in settings or path == PROPERTIES or path.startswith(PROPERTIES + ".")


def setting_of_variable(name):
    """Returns the setting that a variable sets; None: the program does not read the variable."""
    if not name.startswith("UTXO_STORE__"):
        return None
    return name.removeprefix("UTXO_STORE__").replace("__", ".").lower()


def looks_like_a_setting(name):
    return name.startswith(("UTXO_STORE_", "TERANODE_"))


def name_of(item):
    return f"{item.get('kind')}/{item.get('metadata', {}).get('name')}"


def pod_of(item):
    """Returns the pod template's spec of a workload, or None."""
    spec = item.get("spec") or {}
    if item.get("kind") == "CronJob":
        spec = spec.get("jobTemplate", {}).get("spec", {})
    if item.get("kind") == "Pod":
        return spec
    return spec.get("template", {}).get("spec") if isinstance(spec.get("template"), dict) else None


def files_of_volume(volume, config_maps):
    """Returns the names of the files of a volume; None: their names are not known here."""
    if name := volume.get("configMap", {}).get("name"):
        if items := volume["configMap"].get("items"):
            return {item["path"] for item in items}
        return set(config_maps[name]["data"]) if name in config_maps else set()
    if secret := volume.get("secret"):
        return {item["path"] for item in secret["items"]} if "items" in secret else None
    if projected := volume.get("projected"):
        names = set()
        for source in projected["sources"]:
            for kind in ("secret", "configMap"):
                if kind in source and "items" not in source[kind]:
                    return None
                names |= {item["path"] for item in source.get(kind, {}).get("items", [])}
        return names
    return None


class Checker:
    """Findings of one input, and counts of what was compared."""

    def __init__(self, file, items):
        self.file, self.items = file, items
        self.settings = settings_of_the_sample()
        self.config_maps = {item["metadata"]["name"]: item for item in items if item.get("kind") == "ConfigMap"}
        self.findings, self.keys, self.variables, self.rules = [], 0, 0, 0

    def report(self, item, text):
        self.findings.append(f"{self.file}: {name_of(item)}: {text}")

    def check(self):
        for item in self.items:
            if item.get("kind") == "ConfigMap":
                self.check_config_map(item)
            elif item.get("kind") == "PrometheusRule":
                self.check_rules(item)
            elif pod := pod_of(item):
                for container in (pod.get("initContainers") or []) + (pod.get("containers") or []):
                    self.check_container(item, pod, container)

    def check_config_map(self, item):
        for file, text in (item.get("data") or {}).items():
            if file.endswith(".toml"):
                for path, _ in leaves(self.parse(item, file, text)):
                    self.keys += 1
                    if not is_known(path, self.settings):
                        self.report(item, f"{file}: unknown key {path}: deploy/utxo-store.toml does not have it")
            elif looks_like_a_setting(file):
                # `envFrom` makes variables of such keys.
                self.check_variable(item, file)

    def parse(self, item, file, text):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            self.report(item, f"{file}: cannot parse: {error}")
            return {}

    def check_variable(self, item, name):
        self.variables += 1
        path = setting_of_variable(name)
        if path is None:
            self.report(item, f"variable {name} is not read: a variable is UTXO_STORE__SECTION__KEY")
        elif not is_known(path, self.settings):
            self.report(item, f"unknown variable {name}: deploy/utxo-store.toml does not have {path}")

    def check_container(self, item, pod, container):
        values = {}
        for variable in container.get("env") or []:
            if looks_like_a_setting(variable["name"]):
                self.check_variable(item, variable["name"])
                values[setting_of_variable(variable["name"])] = variable.get("value")
        words = (container.get("command") or []) + (container.get("args") or [])
        config = {}
        for at, word in enumerate(words):
            if word == "--config" and at + 1 < len(words):
                config = self.config_of(item, pod, container, words[at + 1])
        effective = {**config, **values}
        for path, file in effective.items():
            if path and path.endswith("_file") and isinstance(file, str) and not self.is_mounted(pod, container, file):
                self.report(item, f"{path}: no volume of container {container['name']} gives {file}")
        if "run" in words and "vault" not in words:
            self.check_grace(item, pod, effective)

    def config_of(self, item, pod, container, path):
        """Returns the settings of the file that --config names."""
        for mount, volume in self.mounts(pod, container):
            config_map = self.config_maps.get(volume.get("configMap", {}).get("name"))
            file = posixpath.relpath(path, mount["mountPath"])
            if config_map and file in config_map["data"]:
                return dict(leaves(self.parse(item, file, config_map["data"][file])))
        self.report(item, f"--config {path}: no ConfigMap of this input gives the file")
        return {}

    def mounts(self, pod, container):
        volumes = {volume["name"]: volume for volume in pod.get("volumes") or []}
        for mount in container.get("volumeMounts") or []:
            # A volume without an entry is a claim of a StatefulSet.
            yield mount, volumes.get(mount["name"], {})

    def is_mounted(self, pod, container, file):
        for mount, volume in self.mounts(pod, container):
            if file.startswith(mount["mountPath"].rstrip("/") + "/"):
                names = files_of_volume(volume, self.config_maps)
                if names is None or posixpath.relpath(file, mount["mountPath"]) in names:
                    return True
        return False

    def check_grace(self, item, pod, effective):
        with SAMPLE.open("rb") as sample:
            default = tomllib.load(sample)["ingest"]["drain_timeout_ms"]
        drain = int(effective.get("ingest.drain_timeout_ms") or default) / 1000
        grace = pod.get("terminationGracePeriodSeconds", 30)
        if grace <= drain + COMMIT_SECONDS:
            self.report(item, f"terminationGracePeriodSeconds is {grace}: a drain takes up to {drain:g} s "
                              f"(ingest.drain_timeout_ms), and a commit {COMMIT_SECONDS} s")

    def check_rules(self, item):
        wanted = yaml.safe_load(RULES.read_text())["groups"]
        groups = (item.get("spec") or {}).get("groups") or []
        self.rules += sum(len(group.get("rules", [])) for group in groups)
        if groups != wanted:
            self.report(item, "differs from deploy/prometheus/utxo-store.rules.yml: write it again as "
                              "deploy/kubernetes/monitoring/prometheusrule.yaml says")


def read(file):
    """Returns the objects of a file; the items of a List count as objects."""
    text = sys.stdin.read() if file == "-" else Path(file).read_text()
    for item in yaml.safe_load_all(text):
        if isinstance(item, dict):
            yield from item["items"] if item.get("kind") == "List" else [item]


def main(files):
    if not files or files[0] in ("-h", "--help"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    findings = []
    for file in files:
        checker = Checker(file, list(read(file)))
        checker.check()
        findings += checker.findings
        print(f"{file}: {len(checker.items)} objects, {checker.keys} keys, {checker.variables} variables, "
              f"{checker.rules} alerts, {len(checker.findings)} findings")
    for finding in findings:
        print(finding, file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
