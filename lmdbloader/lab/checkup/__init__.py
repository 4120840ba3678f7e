"""What makes loading slow on this machine: facts with verdicts and remedies."""

from lmdbloader.lab.checkup.diagnosis import doctor as doctor
from lmdbloader.lab.checkup.diagnosis import examine as examine
from lmdbloader.lab.checkup.findings import Checkup as Checkup
from lmdbloader.lab.checkup.findings import DatasetFacts as DatasetFacts
from lmdbloader.lab.checkup.findings import Finding as Finding
from lmdbloader.lab.checkup.findings import dataset_facts as dataset_facts
