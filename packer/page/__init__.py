"""A store on one page of HTML that needs nothing else: `packer report`."""
