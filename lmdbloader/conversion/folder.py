Report=convert=None
