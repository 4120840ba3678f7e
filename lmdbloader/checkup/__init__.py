"""What makes loading slow on this machine: facts with verdicts and remedies."""

from lmdbloader.checkup.examining import doctor as doctor
from lmdbloader.checkup.examining import examine as examine
from lmdbloader.checkup.facts import DatasetFacts as DatasetFacts
from lmdbloader.checkup.facts import dataset_facts as dataset_facts
from lmdbloader.checkup.findings import Checkup as Checkup
from lmdbloader.checkup.findings import Finding as Finding
