"""What a build would do, without writing anything: `packer plan`."""
