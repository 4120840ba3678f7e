"""The checkup: causes of slow loading on this machine, each with a verdict and a remedy."""

from lmdbloader.lab.checkup.diagnosis import doctor as doctor
from lmdbloader.lab.checkup.diagnosis import examine as examine
from lmdbloader.lab.checkup.findings import Checkup as Checkup
from lmdbloader.lab.checkup.findings import DatasetFacts as DatasetFacts
from lmdbloader.lab.checkup.findings import Finding as Finding
from lmdbloader.lab.checkup.findings import dataset_facts as dataset_facts
