"""Load tests: what Penstock and its peers do under the work of an agent farm."""
