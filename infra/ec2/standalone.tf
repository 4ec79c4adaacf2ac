# `terraform apply -var multinode_mpi=true`: a launcher and two workers to log in to and use by hand,
# without clusterctl: SSH among the nodes, Open MPI and Docker, set up by cloud-init.
locals {
  mesh_key = try(file(pathexpand(var.mesh_key)), "")
  mesh_pub = trimspace(try(file(pathexpand("${var.mesh_key}.pub")), ""))

  # Known before there are any machines, so that every machine can know all of them.
  addresses = var.multinode_mpi ? merge(
    { launcher = cidrhost(cidrsubnet(var.cidr, 4, 0), 10) },
    { for number in [1, 2] : "worker-${number}" => cidrhost(cidrsubnet(var.cidr, 4, 0), 10 + number) }
  ) : {}
  ranks = [for name in keys(local.workers) : local.addresses[name] if var.multinode_mpi]

  # A private key is put where nobody but root reads it before the user gets it.
  mesh = {
    for name in keys(local.addresses) : name => "#cloud-config\n${jsonencode({
      ssh_authorized_keys = [local.mesh_pub]
      write_files = [
        { path = "/root/mesh_key", permissions = "0600", content = local.mesh_key },
        { path = "/root/hosts", content = join("", [for host, address in local.addresses : "${address} ${host}\n"]) },
        {
          path    = "/etc/ssh/ssh_config.d/50-mesh.conf"
          content = "Host launcher worker-* ${replace(cidrhost(var.cidr, 0), ".0.0", ".*")}\n  User ubuntu\n  IdentityFile ~/.ssh/mesh_key\n  StrictHostKeyChecking accept-new\n"
        },
      ]
      runcmd = [
        ["shutdown", "-P", "+${floor(var.ttl_hours * 60)}"],
        ["sh", "-c", "cat /root/hosts >>/etc/hosts"],
        ["install", "-o", "ubuntu", "-g", "ubuntu", "-m", "600", "/root/mesh_key", "/home/ubuntu/.ssh/mesh_key"],
        ["rm", "/root/mesh_key", "/root/hosts"],
        ["apt-get", "update"],
        ["apt-get", "install", "-y", "openmpi-bin", "docker.io", "python3-pip"],
        ["usermod", "-aG", "docker", "ubuntu"],
        # Docker's bridge has the same address on every machine, and leads to none of the others.
        ["sh", "-c", "printf 'btl_tcp_if_include = ${var.cidr}\noob_tcp_if_include = ${var.cidr}\n' >>/etc/openmpi/openmpi-mca-params.conf"],
      ]
    })}"
  }
}

# Says what is missing before anything is made.
resource "terraform_data" "multinode_mpi" {
  count = var.multinode_mpi ? 1 : 0

  lifecycle {
    precondition {
      condition     = var.public_key != ""
      error_message = <<-EOT
        Whose key opens the launcher? If you have none: ssh-keygen -t ed25519
          terraform apply -var multinode_mpi=true -var "public_key=$(cat ~/.ssh/id_ed25519.pub)" …
      EOT
    }

    precondition {
      condition     = local.mesh_key != "" && local.mesh_pub != ""
      error_message = <<-EOT
        There is no key ${var.mesh_key} with which the nodes log in to each other. Make one:
          ssh-keygen -q -t ed25519 -N '' -f ${var.mesh_key}
      EOT
    }

    precondition {
      condition     = var.ssh_cidr != ""
      error_message = <<-EOT
        From where will you log in? Your address, as AWS sees it:
          terraform apply -var multinode_mpi=true -var "ssh_cidr=$(curl -s https://checkip.amazonaws.com)/32" …
      EOT
    }

    precondition {
      condition     = var.subnet_id == "" && !var.private && !var.instance_connect
      error_message = "multinode_mpi makes a network of its own, with public addresses."
    }
  }
}
